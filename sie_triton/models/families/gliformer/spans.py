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
    is_start, is_end = (_marked(places, scores[0].shape) for places in (starts, ends))
    if names:
        is_start[:, [label for label in range(is_start.shape[1]) if label not in names]] = False
    found, least = np.empty((0, 4)), -np.inf
    for first in np.flatnonzero(is_start.any(1)).tolist():
        of_word = _spans_from(first, scores, is_start[first], is_end[first:][:max_width], threshold)
        found = np.concatenate([found, of_word[of_word[:, 3] > least]])
        if len(found) > 4 * MAX_SPANS:
            found = _best(found)
            least = found[:, 3].min()
    return [
        Span(start=int(first), end=int(last), entity_type=names.get(int(label), str(int(label))), score=score)
        for first, label, last, score in _best(found).tolist()
    ]


def _marked(places: Sequence[Sequence[int]], shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    marked = np.zeros(shape, np.bool_)
    marked[tuple(np.array(places, np.int64).reshape(2, -1))] = True
    return marked


def _spans_from(
    first: int,
    scores: Sequence[Floats],
    is_start: npt.NDArray[np.bool_],
    is_end: npt.NDArray[np.bool_],
    threshold: float,
) -> npt.NDArray[np.float64]:
    """Return the spans that begin at a word: start, label, end and score of each. `is_end` begins at that word, too."""
    labels = np.flatnonzero(is_start)
    inside, start, end = (each[:, labels] for each in scores)
    stop = first + len(is_end)
    least = np.minimum.accumulate(inside[first:stop], axis=0)
    score = np.minimum(np.minimum(least, end[first:stop]), start[first])
    if first > 0:
        score = np.minimum(score, np.float32(1) - inside[first - 1])
    after = np.float32(1) - inside[first + 1 : stop + 1]
    score[: len(after)] = np.minimum(score[: len(after)], after)
    label, last = np.nonzero((is_end[:, labels] & (least >= threshold)).T)
    return np.stack([np.full(len(last), first), labels[label], first + last, score[last, label]], axis=1)


def _best(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the MAX_SPANS spans with the best scores, in their order."""
    return found[np.sort(np.argsort(-found[:, 3], kind="stable")[:MAX_SPANS])]
