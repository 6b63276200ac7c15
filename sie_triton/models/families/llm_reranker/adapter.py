"""The forward pass of LLM rerankers: a causal language model's logits of yes and no for the next token."""

from pathlib import Path

import torch

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.llm_reranker import RerankerOptions, judgement_ids
from sie_triton.models.families.shared.judge import Judge
from sie_triton.models.families.shared.token_batch import TokenAdapter


class RerankerAdapter(TokenAdapter):
    """LLM reranker adapter. `judge` gives two logits for each item, that of no and that of yes."""

    def __init__(self, judge: Judge, score_mode: str) -> None:
        super().__init__(judge.encoder)
        self._judge = judge
        self._is_probability = score_mode == "log_softmax"

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        no, yes = self._judge.logits(batch).unbind(-1)
        scores = torch.sigmoid(yes - no) if self._is_probability else yes - no
        return {SCORES.name: scores.cpu().numpy()}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> RerankerAdapter:
    options = RerankerOptions.of(spec)
    files = TextFiles.read(directory)
    return RerankerAdapter(Judge(files.transformer, judgement_ids(options, files), engine), options.score_mode)
