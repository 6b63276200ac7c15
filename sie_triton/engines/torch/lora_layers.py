"""Wrapped layers that add to the base's output, for the rows of each item, the product of the item's LoRA adapter.

A thread runs one forward pass at a time, which a thread-local `CurrentPass` describes for all layers of a model.
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

KINDS = (torch.nn.Linear, PrepackedLinear, Conv1D, torch.nn.Embedding)


class OtherRows(Exception):
    """A layer received rows that are not those of the items."""


class LayerAdapter(Protocol):
    """An adapter's change to one layer."""

    num_bytes: int

    def apply(self, given: torch.Tensor, made: torch.Tensor) -> None:
        """Change `made` [rows, out], the base's output for `given` (states [rows, in] or ids [rows]), in place."""


class LowRank:
    """Part that computes gain · base + shift + (given · firstᵀ) · second.

    `first` is [r, in], `second` [r, out], the others [out] or None. For an embedding, `first` is [words, r], and
    `given` selects its rows.
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
    """Part that replaces the whole layer; `scale` multiplies the output of an embedding."""

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
class LoraAdapter:
    """A loaded adapter."""

    parts: dict[str, LayerAdapter]  # its changes, by the keys of their layers
    apart: bool = False  # a layer reads rows that belong to no single item, so that its items need a separate pass
    used: set[str] | None = field(default=None, repr=False)  # during the trial pass: keys of the layers that ran

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts.values())


Span = tuple[slice, LoraAdapter]


class CurrentPass(threading.local):
    """The adapters of this thread's forward pass.

    `items` are the adapters of the items; empty if no item has one. `spans` are the rows of each adapter among the
    `num_rows` rows of a layer's input; None if they are not known. If `whole` is set, all rows, of any kind, belong to
    this adapter.
    """

    items: tuple[LoraAdapter | None, ...] = ()
    spans: Sequence[Span] | None = ()
    num_rows: int = 0
    whole: LoraAdapter | None = None


class Adapted(torch.nn.Module):
    """Wrapper of the layer `base`: applies to the rows of each adapter the adapter's part for `key`, if it has one."""

    def __init__(self, base: torch.nn.Module, key: str, now: CurrentPass) -> None:
        super().__init__()
        self.base, self.key = base, key
        self._now = now
        self.eval()

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the base layer."""
        with suppress(AttributeError):
            return super().__getattr__(name)
        return getattr(super().__getattr__("base"), name)

    @property
    def whole(self) -> LoraAdapter | None:
        """The only adapter of this pass, if it changes this layer."""
        whole = self._now.whole
        return whole if whole is not None and self.key in whole.parts else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        spans = self._now.spans
        if spans is None:
            raise RuntimeError(f"{self.key}: the batch has adapters, but the rows of its items are not known")
        parts = [(rows, part) for rows, adapter in spans if (part := self._part_of(adapter)) is not None]
        if not parts:
            made: torch.Tensor = self.base(inputs)
            return made
        return self._adapted(inputs, parts)

    def _part_of(self, adapter: LoraAdapter) -> LayerAdapter | None:
        if adapter.used is not None:
            adapter.used.add(self.key)
        return adapter.parts.get(self.key)

    def _adapted(self, inputs: torch.Tensor, parts: Sequence[tuple[slice, LayerAdapter]]) -> torch.Tensor:
        given = inputs.reshape(-1, inputs.shape[-1]) if inputs.is_floating_point() else inputs.reshape(-1)
        if self._now.whole is None and len(given) != self._now.num_rows:
            raise OtherRows(f"{self.key}: received {len(given)} rows; the items have {self._now.num_rows}")
        has_gelu = isinstance(self.base, PrepackedLinear) and self.base.has_gelu
        product = self.base.product(inputs) if isinstance(self.base, PrepackedLinear) else self.base(inputs)
        product = product.contiguous()
        made = product.view(-1, product.shape[-1])
        for rows, part in parts:
            part.apply(given[rows], made[rows])
        return functional.gelu(product) if has_gelu else product


def spans_of(items: Sequence[LoraAdapter | None], lengths: Sequence[int]) -> list[Span]:
    """Return the spans of rows that adapters apply to; adjacent rows of the same adapter are one span.

    >>> a, b = LoraAdapter({}), LoraAdapter({})
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
    """Return the layer's weight: [out, in] for a linear layer, [words, d] for an embedding."""
    if isinstance(layer, PrepackedLinear):
        return layer.whole_weight()
    weight: torch.Tensor = layer.weight.detach()  # type: ignore[operator]
    return weight.T if isinstance(layer, Conv1D) else weight
