"""Spans of a text for one label or field → those to return, the best first. Pure.

The policies are those of gliner2. Without one, a span is kept if it overlaps no better span. "flat": the set of
disjoint spans with the largest sum of scores; "nested": spans that cross no better span; "longest": spans that lie in
no other; "allow": all spans.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Spans = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def resolved(spans: Spans, scores: Floats, policy: str = "") -> Indices:
    """Return the rows to keep. spans [n, 2]: start and end, exclusive; scores [n]. Among equals the first wins."""
    if not policy:
        ranked: Indices = np.argsort(-scores, kind="stable")
        return ranked[_apart(spans[ranked].tolist())]
    order: Indices = np.lexsort((spans[:, 1], spans[:, 0], -scores))
    _, first = np.unique(spans[order], axis=0, return_index=True)
    order = order[np.sort(first)]
    return order[RULES[policy](spans[order], scores[order].astype(np.float64))]


def _apart(rows: Sequence[Sequence[int]]) -> list[int]:
    """Keep each row that overlaps no earlier one. Kept rows never overlap, so only the neighbours are compared."""
    starts: list[int] = []
    ends: list[int] = []
    kept = []
    for i, (start, end) in enumerate(rows):
        place = bisect_left(starts, end)
        if not place or ends[place - 1] <= start:
            starts.insert(place, start)
            ends.insert(place, end)
            kept.append(i)
    return kept


def _nested(spans: Spans, scores: Floats) -> list[int]:
    """Keep spans that cross no better one. Spans that cross start closer together than the longest span is long."""
    order = np.argsort(spans[:, 0], kind="stable")
    starts, ends = spans[order, 0], spans[order, 1]
    reach = int((ends - starts).max(initial=0))
    is_kept = np.zeros(len(spans), np.bool_)
    place = np.argsort(order)
    kept = []
    for i, (start, end) in enumerate(spans.tolist()):
        near = slice(*np.searchsorted(starts, [start - reach, end]))
        first, last = starts[near], ends[near]
        crosses = ((first < start) & (start < last) & (last < end)) | ((start < first) & (end < last) & (first < end))
        if not (crosses & is_kept[near]).any():
            is_kept[place[i]] = True
            kept.append(i)
    return kept


def _longest(spans: Spans, scores: Floats) -> list[int]:
    """Keep spans that lie in no other: in order of start, the longest first, those that end later than all before."""
    order = np.lexsort((-spans[:, 1], spans[:, 0]))
    ends = spans[order, 1]
    before = np.maximum.accumulate(np.concatenate([[-1], ends[:-1]]))
    return sorted(order[ends > before].tolist())


def _flat(spans: Spans, scores: Floats) -> list[int]:
    """Weighted interval scheduling. Among sets of equal score: the larger, then the one with the better spans."""
    ranks = np.lexsort((-scores, spans[:, 0], spans[:, 1])).tolist()
    ends = spans[ranks, 1].tolist()
    best: list[tuple[float, int]] = [(0.0, 0)]
    taken: list[int] = []  # per span: how many earlier ones are compatible; -1: it is left out
    for i, rank in enumerate(ranks):
        before = bisect_right(ends, int(spans[rank, 0]), 0, i)
        worth, size = best[before]
        with_it, without = (worth + float(scores[rank]), size + 1), best[i]
        is_taken = with_it > without
        if with_it == without:
            is_taken = sorted([rank, *_set(ranks, taken, before)]) < sorted(_set(ranks, taken, i))
        best.append(with_it if is_taken else without)
        taken.append(before if is_taken else -1)
    return sorted(_set(ranks, taken, len(ranks)))


def _set(ranks: Sequence[int], taken: Sequence[int], end: int) -> list[int]:
    """Return the best set among the first `end` spans."""
    found = []
    while end:
        if taken[end - 1] < 0:
            end -= 1
        else:
            found.append(ranks[end - 1])
            end = taken[end - 1]
    return found


RULES: Mapping[str, Callable[[Spans, Floats], list[int]]] = {
    "flat": _flat,
    "nested": _nested,
    "longest": _longest,
    "allow": lambda spans, scores: list(range(len(spans))),
}
POLICIES = tuple(RULES)
