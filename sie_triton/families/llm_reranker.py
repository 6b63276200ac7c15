"""The LLM reranker family: a causal language model's judgement of query and text, read off its next token."""

import logging
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import SCORES
from sie_triton.engines.torch.encoder import Encoder, load_model
from sie_triton.engines.torch.heads import TokenHead, last
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.probe import choose_path
from sie_triton.errors import LoadError
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.inputs.tokenizer import read_tokenizer
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec, RerankerConfig

log = logging.getLogger(__name__)


class RerankerAdapter:
    """`head` gives two logits a token, of no and of yes."""

    def __init__(self, encoder: Encoder, head: TokenHead, score_mode: str) -> None:
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.weights_bytes = encoder.weights_bytes
        self._head = head
        self._is_probability = score_mode == "log_softmax"

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Rows:
        hidden = self.encoder.hidden_states(batch.input_ids, batch.lengths)
        no, yes = self._head(last(hidden, torch.from_numpy(batch.lengths.astype(np.int64)))).float().unbind(-1)
        scores = torch.sigmoid(yes - no) if self._is_probability else yes - no
        return {SCORES.name: scores.cpu().numpy()}


def load(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> RerankerAdapter:
    """Load a causal language model; LoadError says what in it cannot be used."""
    assert spec.reranker is not None
    files = TextFiles.read(directory)
    dtype = choose_dtype(spec.runtime.precision, device)
    model = load_model(files.transformer, dtype, device, AutoModelForCausalLM)
    keep_tokens(model, judgement_ids(spec.reranker, files))
    head = TokenHead(model)
    encoder = Encoder(head.encoder, spec.runtime.attention)
    verdict = choose_path(encoder, spec.max_sequence_length, measurements)
    log.info("%s runs %s (%s), attention kernel %s", spec.model, verdict.path, verdict.reason, encoder.kernel)
    return RerankerAdapter(encoder, head, spec.reranker.score_mode)


def judgement_ids(config: RerankerConfig, files: TextFiles) -> list[int]:
    """The first token of no and that of yes."""
    tokenizer = read_tokenizer(files, 8)
    ids = []
    for word in (config.no_token, config.yes_token):
        found = tokenizer.encode(word, add_special_tokens=False).ids
        if not found:
            raise LoadError(f"the tokenizer makes no token of {word!r}", "unsupported")
        ids.append(int(found[0]))
    return ids


def keep_tokens(model: torch.nn.Module, ids: list[int]) -> None:
    """Let `model` give logits of these tokens only."""
    whole = model.get_output_embeddings()  # type: ignore[operator]  # a PreTrainedModel
    part = torch.nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None).to(whole.weight)
    part.weight.data = whole.weight[ids].detach().clone()
    if whole.bias is not None:
        part.bias.data = whole.bias[ids].detach().clone()
    model.set_output_embeddings(part)  # type: ignore[operator]
