"""Model heads, which turn encoder states into logits, by the model's own code.

The encoder is replaced by a stub that returns its input, so that the library computes the head of every architecture.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from sie_triton.arrays import Ints
from sie_triton.engines.torch.prepack import can_prepack, prepack
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError

# Maximum difference between a head's logits and those of the whole model, relative to the largest.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


class TokenHead:
    """Head for each token's state: [tokens, d] → [tokens, k]."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.encoder = take_encoder(model)

    def prepare(self) -> None:
        """Optimise the layout of the weights."""
        if can_prepack(next(self.model.parameters())):
            prepack(self.model)

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs_embeds=hidden[None]).logits
        return logits[0]


class SequenceHead:
    """Head for the states of an item: [tokens, d] → [items, labels].

    Whether it reads the first state, the last or their mean is determined by comparison with the whole model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        if model.config.pad_token_id is None:
            # Some heads search for padding after the last token. They get one state per item, without padding.
            model.config.pad_token_id = 0
        sample = sample_ids(model)
        with torch.inference_mode():
            expected = model(input_ids=sample).logits
            hidden = getattr(model, model.base_model_prefix)(input_ids=sample)[0][0]
        self.encoder = take_encoder(model)
        self._representative = self._choose(hidden, expected)

    def places(self, lengths: Ints) -> Indices:
        """Return the tokens that the head reads."""
        return REPRESENTATIVES[self._representative][0](lengths)

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor, places: Indices) -> torch.Tensor:
        return self._logits(REPRESENTATIVES[self._representative][1](hidden, places))

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs_embeds=states[:, None]).logits
        return logits

    @torch.inference_mode()
    def _choose(self, hidden: torch.Tensor, expected: torch.Tensor) -> str:
        lengths = np.array([len(hidden)], np.int32)
        errors = {
            name: float((self._logits(pick(hidden, places(lengths))) - expected).abs().max() / expected.abs().max())
            for name, (places, pick) in REPRESENTATIVES.items()
        }
        best = min(errors, key=errors.__getitem__)
        if not errors[best] <= TOLERANCE[hidden.dtype]:
            raise LoadError(
                f"{type(self.model).__name__}: its head reads neither the first nor the last nor the mean "
                f"of an item's states (off by {errors[best]:.0e})",
                "unsupported",
            )
        return best


class DecoderHead:
    """Head of an encoder-decoder such as BART, for the decoder state of the last token. Used like SequenceHead."""

    def __init__(self, model: PreTrainedModel) -> None:
        head = getattr(model, "classification_head", None)
        if head is None:
            raise LoadError(f"{type(model).__name__}: has no classification_head", "unsupported")
        self.model, self._head = model, head
        self.encoder: PreTrainedModel = getattr(model, model.base_model_prefix)

    def places(self, lengths: Ints) -> Indices:
        return last(lengths)

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor, places: Indices) -> torch.Tensor:
        logits: torch.Tensor = self._head(states_at(hidden, places))
        return logits


def first(lengths: Ints) -> Indices:
    """Return the index of the first token of each item."""
    return Indices(np.cumsum(lengths, dtype=np.int64) - lengths)


def last(lengths: Ints) -> Indices:
    """Return the index of the last token of each item."""
    return Indices(np.cumsum(lengths, dtype=np.int64) - 1)


def states_at(hidden: torch.Tensor, places: Indices) -> torch.Tensor:
    """[tokens, d] → [items, d]."""
    return hidden[places.on(hidden.device)[0]]


def mean(hidden: torch.Tensor, lengths: Indices) -> torch.Tensor:
    """[tokens, d] → [items, d]."""
    return torch.stack([states.mean(0) for states in torch.split(hidden, lengths.arrays[0].tolist())])


# By name: lengths, int32 [items] → the indices to read; states [tokens, d] and these → [items, d].
REPRESENTATIVES: Mapping[str, tuple[Callable[[Ints], Indices], Callable[[torch.Tensor, Indices], torch.Tensor]]] = {
    "first": (first, states_at),
    "last": (last, states_at),
    "mean": (Indices, mean),
}


class _Given(torch.nn.Module):
    def __init__(self, pooler: torch.nn.Module | None) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        pooled = None if self.pooler is None else self.pooler(inputs_embeds)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=inputs_embeds, pooler_output=pooled)


def take_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Remove and return the encoder of `model`; a stub that returns its `inputs_embeds` and the pooler remain."""
    encoder: PreTrainedModel = getattr(model, model.base_model_prefix)
    pooler = getattr(encoder, "pooler", None)
    if pooler is not None:
        encoder.register_module("pooler", None)
    setattr(model, model.base_model_prefix, _Given(pooler))
    return encoder


def sample_ids(model: PreTrainedModel) -> torch.Tensor:
    """Return random ordinary tokens, int64 [1, 12]."""
    vocab_size = int(model.config.get_text_config().vocab_size)
    ids = np.random.default_rng(0).integers(vocab_size // 4, 3 * vocab_size // 4, (1, 12))
    return torch.from_numpy(ids).to(next(model.parameters()).device)
