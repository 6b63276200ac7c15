"""The forward pass of LLM rerankers: a causal language model's logits of yes and no for the next token."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, SCORES
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import TokenHead, last, states_at
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.llm_reranker import RerankerOptions
from sie_triton.models.families.llm_reranker.processor import judgement_ids
from sie_triton.models.families.shared.token_batch import tokens


class Judge:
    """Causal language model that gives logits of a few tokens; raises LoadError saying what cannot be used."""

    def __init__(self, transformer: Path, ids: list[int], engine: TorchEngine) -> None:
        model = engine.load(transformer, AutoModelForCausalLM)
        kept = keep_tokens(model, ids)
        self._head = TokenHead(model)
        self.encoder: TorchEncoder = engine.encoder(self._head.encoder)
        self.encoder.loras.model.heads.append(model)
        self.encoder.loras.model.kept[kept] = ids
        engine.settle(self.encoder)
        self.limits = {INPUT_IDS.name: self.encoder.vocab_size - 1}

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the tokens after each item: float32 [items, tokens]."""
        input_ids, lengths = tokens(batch)
        places = last(lengths)
        states = states_at(self.encoder.hidden_states(input_ids, lengths, extra_indices=[places]), places)
        with self.encoder.loras.over([1] * len(lengths)):
            return self._head(states).float()


class RerankerAdapter(Adapter):
    """LLM reranker adapter. `judge` gives two logits for each item, that of no and that of yes."""

    encoder: TorchEncoder

    def __init__(self, judge: Judge, score_mode: str) -> None:
        super().__init__(judge.encoder, limits=judge.limits)
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


def keep_tokens(model: torch.nn.Module, ids: list[int]) -> str:
    """Restrict the logits of `model` to these tokens; return the name of the new output layer."""
    whole = model.get_output_embeddings()  # type: ignore[operator]  # a PreTrainedModel
    part = torch.nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None).to(whole.weight)
    part.weight.data = whole.weight[ids].detach().clone()
    if whole.bias is not None:
        part.bias.data = whole.bias[ids].detach().clone()
    model.set_output_embeddings(part)  # type: ignore[operator]
    names = [name for name, module in model.named_modules() if module is part]
    return str(names[0])
