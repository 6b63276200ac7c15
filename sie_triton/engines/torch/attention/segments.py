"""Boundaries of the items in a packed row, and attention windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch

from sie_triton.engines.torch.transfers import Indices

# (left, right): a query sees keys from `left` before it to `right` after it, within its item; -1 means no limit.
Window = tuple[int, int]

EVERYTHING: Window = (-1, -1)
CAUSAL: Window = (-1, 0)


@dataclass(frozen=True)
class Segments:
    """Packed items: `lengths` in tokens, and the number of leading tokens of each item that are keys."""

    lengths: tuple[int, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], keys: Sequence[int] | None = None) -> "Segments":
        """Build segments; with `keys` None, every token is a key."""
        return cls(tuple(lengths), tuple(lengths if keys is None else keys))

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """Runs of equal adjacent items, one kernel call each: (number of items, tokens per item, keys per item).

        >>> Segments.of([3, 3, 5]).runs
        ((2, 3, 3), (1, 5, 5))
        """
        alike = groupby(zip(self.lengths, self.keys, strict=True))
        return tuple((sum(1 for _ in group), length, keys) for (length, keys), group in alike)

    @property
    def all_are_keys(self) -> bool:
        return self.keys == self.lengths

    @cached_property
    def longest(self) -> int:
        return max(self.lengths)

    def takes_aligned_to_keys(self, window: Window) -> bool:
        """True if `window` selects the same keys when aligned with an item's last key instead of its last token.

        This holds if every token is a key, or the window covers every item that has other tokens.
        """
        return all(side < 0 or side >= self._longest_with_others - 1 for side in window)

    @cached_property
    def _longest_with_others(self) -> int:
        """Length of the longest item with tokens that are not keys; 0 if there is none."""
        return max((n for n, keys in zip(self.lengths, self.keys, strict=True) if keys < n), default=0)

    def offsets(self, device: torch.device) -> torch.Tensor:
        """Return int32 [items + 1] on `device`: the start of each item, and the end of the last."""
        return self.indices.on(device)[0]

    def num_keys(self, device: torch.device) -> torch.Tensor:
        """Return `keys` as int32 [items] on `device`."""
        return self.indices.on(device)[1]

    @cached_property
    def indices(self) -> Indices:
        """Arrays that kernels read on the device."""
        return Indices(np.cumsum((0, *self.lengths), dtype=np.int32), np.array(self.keys, np.int32))
