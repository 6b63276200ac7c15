"""Causal language models that judge by the logits of a few tokens for the next token."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from sie_triton.contract import Batch
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import TokenHead, last, states_at
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

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the tokens after each item: float32 [items, tokens]."""
        input_ids, lengths = tokens(batch)
        places = last(lengths)
        states = states_at(self.encoder.hidden_states(input_ids, lengths, extra_indices=[places]), places)
        with self.encoder.loras.over([1] * len(lengths)):
            return self._head(states).float()


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
