"""Model heads, which turn encoder states into logits, by the model's own code.

The encoder is replaced by a stub that returns its input, so that the library computes the head of every architecture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from sie_triton.contract.arrays import Ints, item_lengths
from sie_triton.engines.torch.draws import Draws, draws_of
from sie_triton.engines.torch.faults import refusing_the_uncomputable
from sie_triton.engines.torch.prepack import can_prepack, prepack
from sie_triton.engines.torch.probe import check_range
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError

# Maximum difference between a head's logits and those of the whole model, relative to the largest.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


class TokenHead:
    """Head for each token's state: [tokens, d] → [tokens, k].

    LoadError if it gives other logits than the whole model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._samples = computed(model, sampled(draws_of(model)))
        self.encoder = take_encoder(model)
        self._check()

    def prepare(self) -> None:
        """Optimise the layout of the weights; LoadError if the head then gives other logits."""
        if can_prepack(next(self.model.parameters())):
            prepack(self.model)
            self._check()
        del self._samples

    @refusing_the_uncomputable()
    def _check(self) -> None:
        error = self._samples.error_of(self(self._samples.hidden))
        self._samples.check(error, self.model, "reads more than the states of its tokens")

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs_embeds=hidden[None]).logits
        return logits[0]


class SequenceHead:
    """Head for the states of an item: [tokens, d] → [items, labels].

    Whether it reads the first state, the last, the last that is no padding, or their mean is determined by comparison
    with the whole model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self._padding = -1 if config.pad_token_id is None else int(config.pad_token_id)
        samples = computed(model, sampled(draws_of(model)))
        if config.pad_token_id is None:
            # Some heads search for padding after the last token. They get one state per item, without padding.
            config.pad_token_id = 0
        self.encoder = take_encoder(model)
        self._representative = self._choose(samples)

    def places(self, input_ids: Ints, lengths: Ints) -> Indices:
        """Return the tokens that the head reads."""
        return REPRESENTATIVES[self._representative][0](input_ids, lengths, self._padding)

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor, places: Indices) -> torch.Tensor:
        return self._logits(REPRESENTATIVES[self._representative][1](hidden, places))

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs_embeds=states[:, None]).logits
        return logits

    @torch.inference_mode()
    @refusing_the_uncomputable()
    def _choose(self, samples: "Samples") -> str:
        errors: dict[str, float] = {}
        for name, (_, pick) in REPRESENTATIVES.items():
            self._representative = name
            logits = self._logits(pick(samples.hidden, self.places(samples.input_ids, samples.lengths)))
            errors[name] = samples.error_of(logits)
        best = min(errors, key=errors.__getitem__)
        samples.check(
            errors[best],
            self.model,
            "reads neither the first nor the last state of an item, nor the mean of its states",
        )
        return best


class DecoderHead:
    """Head of an encoder-decoder such as BART, for the decoder state of the last closing token, or of the last token
    in an item without a closing token. Used like SequenceHead."""

    def __init__(self, model: PreTrainedModel) -> None:
        head = getattr(model, "classification_head", None)
        if head is None:
            raise LoadError(f"{type(model).__name__}: has no classification_head", "unsupported")
        self.model, self._head = model, head
        self.encoder: PreTrainedModel = getattr(model, model.base_model_prefix)
        self._closing = int(model.config.eos_token_id)
        self._check()

    def places(self, input_ids: Ints, lengths: Ints) -> Indices:
        return last_where(input_ids == self._closing, lengths, otherwise=lengths - 1)

    @torch.inference_mode()
    def _check(self) -> None:
        draws = draws_of(self.model)
        closed = [np.append(each, self._closing).astype(np.int32) for each in sampled(draws)]
        samples = computed(self.model, [*closed, np.append(closed[0], draws.ordinary(3))])
        logits = self(samples.hidden, self.places(samples.input_ids, samples.lengths))
        samples.check(samples.error_of(logits), self.model, "does not read the last closing token")

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor, places: Indices) -> torch.Tensor:
        logits: torch.Tensor = self._head(states_at(hidden, places))
        return logits


@dataclass(frozen=True)
class Samples:
    """Items, the states of the whole model for them, [tokens, d], and its logits, [items or tokens, labels]."""

    input_ids: Ints
    lengths: Ints
    hidden: torch.Tensor
    logits: torch.Tensor

    def error_of(self, logits: torch.Tensor) -> float:
        """Return the largest difference from the whole model's logits, relative to the largest of them."""
        return float((logits - self.logits).abs().max() / self.logits.abs().max())

    def check(self, error: float, model: PreTrainedModel, what: str) -> None:
        """Raise LoadError unless `error` is small, Overflow if float16 is why; `what` says what the head does."""
        check_range(error, self.hidden.dtype)
        if not error <= TOLERANCE[self.hidden.dtype]:
            raise LoadError(f"{type(model).__name__}: its head {what} (off by {error:.0e})", "unsupported")


def sampled(draws: Draws) -> list[Ints]:
    """Return items on which heads differ: special tokens within, padding at either end, and padding alone."""
    return [draws.mixed(13, 0, ends=2), draws.mixed(5, 1, starts=2), draws.mixed(2, 2, ends=2)]


@torch.inference_mode()
def computed(model: PreTrainedModel, items: Sequence[Ints]) -> Samples:
    """Compute each item alone with the whole model."""
    hidden: list[torch.Tensor] = []
    encoder: PreTrainedModel = getattr(model, model.base_model_prefix)
    hook = encoder.register_forward_hook(lambda _, __, output: hidden.append(output[0][0]))
    device = next(model.parameters()).device
    with hook, refusing_the_uncomputable():
        ids = [torch.from_numpy(item.astype(np.int64))[None].to(device) for item in items]
        logits = [model(input_ids=each, attention_mask=torch.ones_like(each)).logits.flatten(0, -2) for each in ids]
    if not hidden:
        raise LoadError(f"{type(model).__name__}: its head does not read the states of its encoder", "unsupported")
    lengths = item_lengths(items)
    return Samples(np.concatenate(items), lengths, torch.cat(hidden), torch.cat(logits))


def first(lengths: Ints) -> Indices:
    """Return the index of the first token of each item."""
    return Indices(np.cumsum(lengths, dtype=np.int64) - lengths)


def last(lengths: Ints) -> Indices:
    """Return the index of the last token of each item."""
    return Indices(np.cumsum(lengths, dtype=np.int64) - 1)


def last_where(chosen: npt.NDArray[np.bool_], lengths: Ints, otherwise: Ints | int) -> Indices:
    """Return the index of the last chosen token of each item, or of the token `otherwise` if none of it is chosen.

    >>> last_where(np.array([1, 0, 1, 0, 0, 0], bool), np.array([4, 2]), 0).arrays[0].tolist()
    [2, 4]
    """
    places = np.where(chosen, placed(lengths)[1], -1)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    last_place = np.maximum.reduceat(places, starts)
    return Indices(starts + np.where(last_place < 0, otherwise, last_place))


def states_at(hidden: torch.Tensor, places: Indices) -> torch.Tensor:
    """[tokens, d] → [items, d]."""
    return hidden[places.on(hidden.device)[0]]


def mean(hidden: torch.Tensor, lengths: Indices) -> torch.Tensor:
    """[tokens, d] → [items, d]."""
    return torch.stack([states.mean(0) for states in torch.split(hidden, lengths.arrays[0].tolist())])


# Input ids, lengths of items and the padding token → the indices to read.
Places = Callable[[Ints, Ints, int], Indices]

# By name: the indices to read; states [tokens, d] and these → [items, d]. If all tokens are padding, the library takes
# the first for the last that is no padding.
REPRESENTATIVES: Mapping[str, tuple[Places, Callable[[torch.Tensor, Indices], torch.Tensor]]] = {
    "first": (lambda _, lengths, __: first(lengths), states_at),
    "last": (lambda _, lengths, __: last(lengths), states_at),
    "last but padding": (lambda ids, lengths, padding: last_where(ids != padding, lengths, 0), states_at),
    "mean": (lambda _, lengths, __: Indices(lengths), mean),
}


class _States(BaseModelOutputWithPoolingAndCrossAttentions):
    """States of an encoder, without anything else that a model passes on."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(torch.nn.Module):
    """A stub of `encoder`, which it has no part in, but for its pooler and what a head reads of its weights."""

    def __init__(self, encoder: PreTrainedModel, pooler: torch.nn.Module | None) -> None:
        super().__init__()
        vars(self)["_encoder"], self.pooler = encoder, pooler

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_encoder"], name)

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _States:
        pooled: Any = None if self.pooler is None else self.pooler(inputs_embeds)
        if isinstance(self.pooler, torch.nn.Linear):  # ALBERT's
            pooled = self.pooler_activation(pooled[:, 0])
        return _States(last_hidden_state=inputs_embeds, pooler_output=pooled)


def take_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Remove and return the encoder of `model`; a stub that returns its `inputs_embeds` and the pooler remain."""
    encoder: PreTrainedModel = getattr(model, model.base_model_prefix)
    pooler = getattr(encoder, "pooler", None)
    if pooler is not None:
        encoder.register_module("pooler", None)
    setattr(model, model.base_model_prefix, _Given(encoder, pooler))
    return encoder
