"""Spans of words by the scores of their starts, ends and insides, in bounded time.

The library pairs each start with each end, one by one, and compares each span with all better ones. `best_spans` finds
the same spans, and keeps at most MAX_SPANS.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Maximum spans of a text with scores above the threshold, before overlaps are resolved.
MAX_SPANS = 1000

Floats = npt.NDArray[np.float32]


def best_spans(
    decoder: Any,
    starts: Sequence[Sequence[int]],
    ends: Sequence[Sequence[int]],
    inside: Any,
    start: Any,
    end: Any,
    names: Mapping[int, str],
    threshold: float,
    max_width: int | None = None,
) -> list[Any]:
    """Replace SpanDecoder._calculate_span_score of gliformer 0.1.3; returns its spans, in its order.

    `starts` and `ends`: words and labels above the threshold; `inside`, `start` and `end`: scores [words, labels].
    """
    from gliformer.tasks.span_decoder import Span

    scores = [each.detach().float().cpu().numpy() for each in (inside, start, end)]
    found: npt.NDArray[np.float64] = np.empty((0, 4))
    is_end = np.zeros(scores[0].shape, np.bool_)
    is_end[tuple(np.array(ends, np.int64).reshape(2, -1))] = True
    for first, label in zip(*starts, strict=True):
        if not names or label in names:
            width = len(is_end) if max_width is None else max_width
            of_start = _spans_from(
                first, label, [each[:, label] for each in scores], is_end[:, label], threshold, width
            )
            found = np.concatenate([found, of_start])
            if len(found) > 4 * MAX_SPANS:
                found = _best(found)
    return [
        Span(start=int(first), end=int(last), entity_type=names.get(int(label), str(int(label))), score=score)
        for first, last, label, score in _best(found).tolist()
    ]


def _spans_from(
    first: int, label: int, scores: Sequence[Floats], is_end: npt.NDArray[np.bool_], threshold: float, width: int
) -> npt.NDArray[np.float64]:
    """Return the spans that begin at a word: start, end, label and score of each."""
    inside, start, end = scores
    outside = np.flatnonzero(inside[first : first + width] < threshold)
    stop = first + (int(outside[0]) if len(outside) else len(inside[first : first + width]))
    last = first + np.flatnonzero(is_end[first:stop])
    least = np.minimum.accumulate(inside[first:stop])[last - first]
    score = np.minimum(np.minimum(least, end[last]), start[first])
    if first > 0:
        score = np.minimum(score, np.float32(1) - inside[first - 1])
    after = np.append(np.float32(1) - inside[1:], np.float32(np.inf))
    score = np.minimum(score, after[last])
    return np.stack([np.full(len(last), first), last, np.full(len(last), label), score], axis=1)


def _best(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the MAX_SPANS spans with the best scores, in their order."""
    return found[np.sort(np.argsort(-found[:, 3], kind="stable")[:MAX_SPANS])]
