"""Spans found for one thing in a text → those that are told, the best first. Pure.

As gliner2 decides. Without a policy a span is told if it shares nothing with a better one. "flat": of all sets of spans
that share nothing the one with the largest sum of scores; "nested": none that crosses a better one; "longest": none
that lies in another; "allow": all.
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
    """Which rows to tell; spans [n, 2], start and end, exclusive; scores [n]. Among equals the first wins."""
    if not policy:
        ranked: Indices = np.argsort(-scores, kind="stable")
        return ranked[_apart(spans[ranked].tolist())]
    order: Indices = np.lexsort((spans[:, 1], spans[:, 0], -scores))
    _, first = np.unique(spans[order], axis=0, return_index=True)
    order = order[np.sort(first)]
    return order[RULES[policy](spans[order], scores[order].astype(np.float64))]


def _apart(rows: Sequence[Sequence[int]]) -> list[int]:
    """What is kept never overlaps, so that only its neighbours have to be looked at."""
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


def _allow(spans: Spans, scores: Floats) -> list[int]:
    return list(range(len(spans)))


def _nested(spans: Spans, scores: Floats) -> list[int]:
    """In the order of their starts, what may cross a span begins less than the longest one away."""
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
    """No two are the same, so that of all that begin no later one that ends no earlier holds it."""
    order = np.lexsort((-spans[:, 1], spans[:, 0]))
    ends = spans[order, 1]
    before = np.maximum.accumulate(np.concatenate([[-1], ends[:-1]]))
    return sorted(order[ends > before].tolist())


def _flat(spans: Spans, scores: Floats) -> list[int]:
    """Weighted interval scheduling. Of sets that are worth the same: the larger, then that with the better spans."""
    ranks = np.lexsort((-scores, spans[:, 0], spans[:, 1])).tolist()
    ends = spans[ranks, 1].tolist()
    best: list[tuple[float, int]] = [(0.0, 0)]
    taken: list[int] = []  # per span, how many before it go with it; -1: it is left out
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
    """The best of the first `end` spans."""
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
    "allow": _allow,
}
POLICIES = tuple(RULES)
