"""Where the items of a packed row lie, and what a token may look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch

from sie_triton.engines.torch.transfers import Indices

# A query sees keys from `left` before it to `right` after it, within its item; -1 is no limit.
Window = tuple[int, int]

EVERYTHING: Window = (-1, -1)


@dataclass(frozen=True)
class Segments:
    """Items laid end to end; `lengths` in tokens, of which the first `keys` of an item are looked at by all of it."""

    lengths: tuple[int, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], keys: Sequence[int] | None = None) -> "Segments":
        """`keys` None: every token is looked at."""
        return cls(tuple(lengths), tuple(lengths if keys is None else keys))

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """(number of items, tokens, keys per item) of neighbours that are alike, for one kernel call each.

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
        """Whether `window` shows the same keys if it is aligned with an item's last key instead of its last token.

        It does where every token is a key, and where the window covers the items that have other tokens.
        """
        return all(side < 0 or side >= self._longest_with_others - 1 for side in window)

    @cached_property
    def _longest_with_others(self) -> int:
        """Tokens of the longest item of which some are no keys; 0: there is none."""
        return max((n for n, keys in zip(self.lengths, self.keys, strict=True) if keys < n), default=0)

    def offsets(self, device: torch.device) -> torch.Tensor:
        """int32 [items + 1] on `device`: where each item begins, and the end."""
        return self.indices.on(device)[0]

    def num_keys(self, device: torch.device) -> torch.Tensor:
        """int32 [items] on `device`: `keys`."""
        return self.indices.on(device)[1]

    @cached_property
    def indices(self) -> Indices:
        """What kernels may read on the device."""
        return Indices(np.cumsum((0, *self.lengths), dtype=np.int32), np.array(self.keys, np.int32))
