"""Choose spans of a text by score, none of which crosses a better one. Pure.

The rules are those of gliner: with `flat`, no two spans share a character; else one may lie in another. With
`multi_label` the same characters may have several labels.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.limits import LIMITS


def chosen(
    spans: Ints,
    scores: Floats,
    *,
    flat: bool = True,
    multi_label: bool = False,
    most: int | None = LIMITS.max_candidates,
) -> npt.NDArray[np.int64]:
    """Return the rows to keep, in order of their starts. spans int32 [n, 3]: start, end, label; scores float32 [n].

    Only the `most` best spans are considered; None: all.
    """
    best = np.argsort(-scores, kind="stable")[:most]
    kept = best[_kept(spans[best].tolist(), flat=flat, multi_label=multi_label)]
    ordered: npt.NDArray[np.int64] = kept[np.argsort(spans[kept, 0], kind="stable")]
    return ordered


def _kept(rows: Sequence[Sequence[int]], *, flat: bool, multi_label: bool) -> list[int]:
    """Choose from `rows`, the best first. Spans are short: only those that start nearby can cross one."""
    widest = max((end - start for start, end, _ in rows), default=0)
    bounds: list[tuple[int, int]] = []
    labels: dict[tuple[int, int], set[int]] = {}
    keep = []
    for i, (start, end, label) in enumerate(rows):
        at = labels.get((start, end))
        if at is None:
            near = bounds[bisect_left(bounds, (start - widest, 0)) : bisect_left(bounds, (end, 0))]
            if any(_crosses(start, end, *other, flat=flat) for other in near):
                continue
            insort(bounds, (start, end))
            labels[start, end] = {label}
        elif multi_label and label not in at:
            at.add(label)
        else:
            continue
        keep.append(i)
    return keep


def _crosses(start: int, end: int, other_start: int, other_end: int, *, flat: bool) -> bool:
    if end <= other_start or other_end <= start:
        return False
    is_inside = (other_start <= start and end <= other_end) or (start <= other_start and other_end <= end)
    return flat or not is_inside


def merged_adjacent(spans: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """Merge neighbours of one label with at most one character between them; a merged span has the best score."""
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
