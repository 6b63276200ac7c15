"""Rows of a forward pass: groups of items with little padding, and row counts that suit matrix products."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Ints

# A padded forward pass has at most one token of padding for this many real tokens.
TOKENS_PER_PADDING = 8

# The same for passes without padding.
NO_PADDING = 1 << 62

# On a CPU, passes of FEW_ROWS and more have a number of rows that recurs; from MANY_ROWS on it is a multiple of ROWS.
FEW_ROWS, MANY_ROWS, ROWS = 64, 512, 16


def _row_counts() -> Iterator[int]:
    count = FEW_ROWS
    while count <= 1 << 20:  # sub-batches are far smaller
        yield count
        count += count // MANY_ROWS * ROWS if count >= MANY_ROWS else 1 << (count.bit_length() - 6)


# Each is at most 1/32 more than the one before it.
ROW_COUNTS = tuple(_row_counts())


def placed(lengths: Ints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the item of each packed token, and the token's position in it; int [tokens] each.

    >>> [each.tolist() for each in placed(np.array([2, 1], np.int32))]
    [[0, 0, 1], [0, 1, 0]]
    """
    items = np.repeat(np.arange(len(lengths)), lengths)
    return items, np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def positions_of(input_ids: Ints, lengths: Ints, padding: int) -> npt.NDArray[np.int64]:
    """Return the position id of each packed token. Tokens count from `padding` + 1 in their item; the token `padding`
    has this position and is not counted.

    >>> positions_of(np.array([7, 1, 8, 9]), np.array([3, 1]), 1).tolist()
    [2, 1, 3, 2]
    """
    items, places = placed(lengths)
    is_padding = input_ids == padding
    if not is_padding.any():
        return places + (padding + 1)
    skipped = np.cumsum(is_padding)
    before = np.append(0, skipped)[np.cumsum(lengths) - lengths]
    return np.where(is_padding, padding, places + (padding + 1) - (skipped - before[items]))


def similar(lengths: Sequence[int], tokens_per_padding: int = TOKENS_PER_PADDING) -> Iterator[list[int]]:
    """Yield groups of item indices, shortest first, that need little padding side by side.

    >>> list(similar([10, 2, 9, 2, 10]))
    [[1, 3], [2, 0, 4]]
    """
    group: list[int] = []
    tokens = 0
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        padding = (len(group) + 1) * lengths[position] - tokens - lengths[position]
        if group and padding * tokens_per_padding > tokens:
            yield group
            group, tokens = [], 0
        group.append(position)
        tokens += lengths[position]
    if group:
        yield group


class SideBySide(NamedTuple):
    """Some items of a packed row as rows of equal length."""

    items: list[int]  # their indices, in the order of the rows
    places: npt.NDArray[np.int64]  # int [real tokens]: their positions in the packed row
    real: npt.NDArray[np.bool_]  # [rows, width]: where a row has tokens
    seen: npt.NDArray[np.bool_]  # the same: those that attention may see

    def filled(self, values: npt.NDArray[Any], padding: int = 0) -> npt.NDArray[np.int64]:
        """Lay out values of the packed row: [tokens] → int64 [rows, width]."""
        rows = np.full(self.real.shape, padding, np.int64)
        rows[self.real] = values[self.places]
        return rows

    def inputs(self, input_ids: Ints, type_ids: Ints, padding: int) -> tuple[npt.NDArray[Any], ...]:
        """Return ids, types and mask, [rows, width] each; flat indices of the real tokens; their positions in the
        packed row."""
        mask, real = self.seen.astype(np.int64), np.flatnonzero(self.real)
        return self.filled(input_ids, padding), self.filled(type_ids), mask, real, self.places


def side_by_side(lengths: Ints, keys: Ints, tokens_per_padding: int = TOKENS_PER_PADDING) -> Iterator[SideBySide]:
    """Yield all items in groups of similar length; tokens see only the first `keys`, int32 [items], of their item.

    >>> [each.places.tolist() for each in side_by_side(np.array([1, 3, 1], np.int32), np.array([1, 3, 1], np.int32))]
    [[0, 4], [1, 2, 3]]
    """
    starts = np.cumsum(lengths) - lengths
    for items in similar(lengths.tolist(), tokens_per_padding):
        columns = np.arange(int(lengths[items].max()))
        real = columns < lengths[items][:, None]
        places = (starts[items][:, None] + columns)[real]
        yield SideBySide(items, places, real, columns < keys[items][:, None])


def spare_items(num_tokens: int) -> list[int]:
    """Return the lengths of items to add on a CPU, so that matrix products have few different numbers of rows.

    oneDNN compiles and keeps a kernel for every number of rows, and is slower for odd ones. At most 3 % is added, 1 to
    1.5 % on average. The items are short: attention to them costs little, and every model has that many positions.

    >>> spare_items(518), spare_items(130), spare_items(50)
    ([10], [2], [])
    >>> spare_items(4980)
    [16, 16, 16, 16, 16, 16, 16, 16, 12]
    """
    if not FEW_ROWS <= num_tokens <= ROW_COUNTS[-1]:
        return []
    spare = ROW_COUNTS[bisect_left(ROW_COUNTS, num_tokens)] - num_tokens
    return [*[ROWS] * (spare // ROWS), *filter(None, [spare % ROWS])]
