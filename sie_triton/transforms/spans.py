"""Which of the spans found in a text to keep: by score, none that crosses a better one. Pure.

As gliner decides: with `flat`, no two share a character; else one may lie in another. With `multi_label` the same
characters may have several labels.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

# So many of a text are looked at, the best: with a threshold of 0 every span is one.
MAX_CANDIDATES = 20_000


def chosen(spans: Ints, scores: Floats, *, flat: bool = True, multi_label: bool = False) -> npt.NDArray[np.int64]:
    """Which rows to keep, by where they start; spans int32 [n, 3], start, end and label; scores float32 [n]."""
    best = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
    rows = spans[best].tolist()
    keep = _flat(rows, multi_label) if flat else _nested(rows, multi_label)
    kept = best[keep]
    ordered: npt.NDArray[np.int64] = kept[np.argsort(spans[kept, 0], kind="stable")]
    return ordered


def _flat(rows: Sequence[Sequence[int]], multi_label: bool) -> list[int]:
    """What is kept never overlaps, so that only its neighbours have to be looked at."""
    starts: list[int] = []
    ends: list[int] = []
    labels: dict[tuple[int, int], set[int]] = {}
    keep = []
    for i, (start, end, label) in enumerate(rows):
        at = labels.get((start, end))
        if at is not None:
            if multi_label and label not in at:
                at.add(label)
                keep.append(i)
            continue
        place = bisect_left(starts, start)
        before, after = place > 0 and ends[place - 1] > start, place < len(starts) and starts[place] < end
        if not before and not after:
            starts.insert(place, start)
            ends.insert(place, end)
            labels[start, end] = {label}
            keep.append(i)
    return keep


def _nested(rows: Sequence[Sequence[int]], multi_label: bool) -> list[int]:
    kept = np.empty((len(rows), 2), np.int64)
    count = 0
    labels: dict[tuple[int, int], set[int]] = {}
    keep = []
    for i, (start, end, label) in enumerate(rows):
        at = labels.get((start, end))
        if at is not None:
            if multi_label and label not in at:
                at.add(label)
                keep.append(i)
            continue
        starts, ends = kept[:count, 0], kept[:count, 1]
        apart = (ends <= start) | (starts >= end)
        inside = ((starts <= start) & (ends >= end)) | ((starts >= start) & (ends <= end))
        if (apart | inside).all():
            kept[count] = start, end
            count += 1
            labels[start, end] = {label}
            keep.append(i)
    return keep


def merged_adjacent(spans: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """Neighbours of one label as one, where at most one character is between them; the best of their scores."""
    order = np.argsort(spans[:, 0], kind="stable")
    found: list[list[int]] = []
    best: list[float] = []
    for (start, end, label), score in zip(spans[order].tolist(), scores[order].tolist(), strict=True):
        if found and found[-1][2] == label and start <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], end)
            best[-1] = max(best[-1], score)
        else:
            found.append([start, end, label])
            best.append(score)
    return np.array(found, np.int32).reshape(-1, 3), np.array(best, np.float32)
