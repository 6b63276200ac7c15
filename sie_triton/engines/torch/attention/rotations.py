"""Rotary positions whose frequencies depend on the length of a text: dynamic NTK and LongRoPE.

The library takes the longest text of a pass for all of them, and keeps the frequencies of one pass for the next.
"""

import inspect
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sie_triton.engines.torch.attention.packed import current
from sie_triton.errors import LoadError

BY_LENGTH = ("dynamic", "longrope")


def rotate_each_item(model: torch.nn.Module) -> bool:
    """Make rotary embeddings in `model` rotate an item by its own length; return True if there are such.

    Outside of `attending`, all rows must have the same length. Raise LoadError if layers differ in their rotations.
    """
    found: list[Any] = [module for module in model.modules() if _is_by_length(getattr(module, "rope_type", None))]
    for module in found:
        module.__class__ = _by_item(type(module))
        vars(module)["_frequencies"] = lru_cache(maxsize=64)(module._compute_frequencies)
    return bool(found)


def _is_by_length(kind: Any) -> bool:
    if isinstance(kind, dict) and not {*BY_LENGTH}.isdisjoint(kind.values()):
        raise LoadError("config.json: rope_parameters: dynamic and longrope must hold for all layers", "unsupported")
    return kind in BY_LENGTH


class _Turned:
    """A rotary embedding with other frequencies."""

    def __init__(self, module: torch.nn.Module, frequencies: torch.Tensor) -> None:
        self._module, self.inv_freq = module, frequencies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _by_item(library: type[torch.nn.Module]) -> type[torch.nn.Module]:
    rotate: Any = inspect.unwrap(library.forward)  # without the library's change of the frequencies

    class ByItem(library):  # type: ignore[misc, valid-type]
        @torch.no_grad()
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            segments, parts, start = current(), [], 0
            lengths = [x.shape[1]] if segments is None else segments.lengths
            for length, items in groupby(lengths, key=self._counted):
                end = start + sum(items)
                turned = _Turned(self, self._frequencies(length, x.device))
                parts.append(rotate(turned, x[:, start:end], position_ids[..., start:end]))
                start = end
            return tuple(torch.cat(each, dim=-2) for each in zip(*parts, strict=True))

        def _counted(self, length: int) -> int:
            """Return the length whose frequencies an item of `length` tokens has; 0 up to the trained length."""
            if self.rope_type == "dynamic":
                return length if length > self.original_max_seq_len else 0
            trained: int = self.config.rope_parameters["original_max_position_embeddings"]
            return trained + 1 if length > trained else 0

        def _compute_frequencies(self, length: int, device: torch.device) -> torch.Tensor:
            if not length:
                usual: torch.Tensor = self.original_inv_freq.to(device)
                return usual
            # A tensor, as in the library, which computes with its precision.
            reached = torch.tensor(length, device=device)
            frequencies: torch.Tensor = ROPE_INIT_FUNCTIONS[self.rope_type](self.config, device, seq_len=reached)[0]
            return frequencies

    return ByItem
