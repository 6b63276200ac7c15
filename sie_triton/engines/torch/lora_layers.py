"""Layers whose rows belong to items, each with a LoRA adapter or none: the base's product, then each adapter's own.

One thread runs one forward pass at a time; what it runs is said by a `Now`, which all layers of a model share.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from sie_triton.engines.torch.prepack import PrepackedLinear

LINEAR = (torch.nn.Linear, PrepackedLinear, Conv1D)
KINDS = (*LINEAR, torch.nn.Embedding)


class OtherRows(Exception):
    """A layer was given rows that are not those of the items."""


class Part(Protocol):
    """What an adapter makes of one layer."""

    num_bytes: int

    def apply(self, given: torch.Tensor, made: torch.Tensor) -> None:
        """`made` [rows, out], what the base made of `given`, states [rows, in] or ids [rows], becomes the adapter's."""


class LowRank:
    """gain · base + shift + (given · firstᵀ) · second; first [r, in], second [r, out], the others [out] or None.

    Of an embedding, what is given chooses among the rows of first, [words, r].
    """

    def __init__(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        gain: torch.Tensor | None = None,
        shift: torch.Tensor | None = None,
    ) -> None:
        self._first, self._second, self._gain, self._shift = first, second, gain, shift
        self.num_bytes = num_bytes(first, second, gain, shift)

    def apply(self, given: torch.Tensor, made: torch.Tensor) -> None:
        if self._gain is not None:
            made.mul_(self._gain)
        if self._shift is not None:
            made.add_(self._shift)
        reduce = functional.linear if given.is_floating_point() else functional.embedding
        made.addmm_(reduce(given, self._first), self._second)


class Saved:
    """A whole layer in the base's place; `scale` is what an embedding is multiplied with."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None) -> None:
        self._weight, self._bias, self._scale = weight, bias, scale
        self.num_bytes = num_bytes(weight, bias)

    def apply(self, given: torch.Tensor, made: torch.Tensor) -> None:
        if given.is_floating_point():
            made.copy_(functional.linear(given, self._weight, self._bias))
            return
        embedded = functional.embedding(given, self._weight)
        made.copy_(embedded if self._scale is None else embedded * self._scale)


@dataclass(eq=False)
class Adapter:
    """`parts` by the keys of layers. `apart`: some of its layers read what is no item's alone, so that its items need a
    pass of their own. `used`: the keys of those that have run, while it is tried.
    """

    parts: dict[str, Part]
    apart: bool = False
    used: set[str] | None = field(default=None, repr=False)

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts.values())


Span = tuple[slice, Adapter]


class Now(threading.local):
    """What the forward pass of this thread runs.

    `items`: the adapter of each item; empty: none has one. `spans`: which rows are whose, as layers get them, of
    `num_rows` in all; None: that is not known. `whole`: all rows are of this adapter, whatever they are.
    """

    items: tuple[Adapter | None, ...] = ()
    spans: Sequence[Span] | None = ()
    num_rows: int = 0
    whole: Adapter | None = None


class Adapted(torch.nn.Module):
    """`base`, and for the rows of an adapter that has a part of that `key` what this makes of them."""

    def __init__(self, base: torch.nn.Module, key: str, now: Now) -> None:
        super().__init__()
        self.base, self.key = base, key
        self._now = now
        self.eval()

    def __getattr__(self, name: str) -> Any:
        """Whatever else a model asks its layers for is the base's."""
        with suppress(AttributeError):
            return super().__getattr__(name)
        return getattr(super().__getattr__("base"), name)

    @property
    def whole(self) -> Adapter | None:
        """The only one of this pass, where it changes this layer."""
        whole = self._now.whole
        return whole if whole is not None and self.key in whole.parts else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        spans = self._now.spans
        if spans is None:
            raise RuntimeError(f"{self.key}: a batch has adapters, and nobody says which rows are whose")
        parts = [(rows, part) for rows, adapter in spans if (part := self._part_of(adapter)) is not None]
        if not parts:
            made: torch.Tensor = self.base(inputs)
            return made
        return self._adapted(inputs, parts)

    def _part_of(self, adapter: Adapter) -> Part | None:
        if adapter.used is not None:
            adapter.used.add(self.key)
        return adapter.parts.get(self.key)

    def _adapted(self, inputs: torch.Tensor, parts: Sequence[tuple[slice, Part]]) -> torch.Tensor:
        given = inputs.reshape(-1, inputs.shape[-1]) if inputs.is_floating_point() else inputs.reshape(-1)
        if self._now.whole is None and len(given) != self._now.num_rows:
            raise OtherRows(f"{self.key}: {len(given)} rows, and the items have {self._now.num_rows}")
        has_gelu = isinstance(self.base, PrepackedLinear) and self.base.has_gelu
        product = self.base.product(inputs) if isinstance(self.base, PrepackedLinear) else self.base(inputs)
        product = product.contiguous()
        made = product.view(-1, product.shape[-1])
        for rows, part in parts:
            part.apply(given[rows], made[rows])
        return functional.gelu(product) if has_gelu else product


def spans_of(items: Sequence[Adapter | None], lengths: Sequence[int]) -> list[Span]:
    """Rows of one adapter that stand side by side are one span.

    >>> a, b = Adapter({}), Adapter({})
    >>> [(rows.start, rows.stop, each is a) for rows, each in spans_of([None, a, a, b], [5, 2, 3, 1])]
    [(5, 10, True), (10, 11, False)]
    """
    spans: list[Span] = []
    start = 0
    for adapter, length in zip(items, lengths, strict=True):
        end = start + length
        if adapter is not None and spans and spans[-1][1] is adapter and spans[-1][0].stop == start:
            spans[-1] = slice(spans[-1][0].start, end), adapter
        elif adapter is not None:
            spans.append((slice(start, end), adapter))
        start = end
    return spans


def num_bytes(*tensors: torch.Tensor | None) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def whole_weight(layer: torch.nn.Module) -> torch.Tensor:
    """[out, in] of a linear layer, [words, d] of an embedding."""
    if isinstance(layer, PrepackedLinear):
        return layer.whole_weight()
    weight: torch.Tensor = layer.weight.detach()  # type: ignore[operator]
    return weight.T if isinstance(layer, Conv1D) else weight
