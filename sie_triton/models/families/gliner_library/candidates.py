"""Bounds of what the library gliner compares: it scores each pair of a text's candidate entities, which may be many."""

from typing import Any

import torch

# Maximum candidate entities of a text between which relations are looked for: those with the best scores.
MAX_CANDIDATES = 100

# Maximum places of a text where a candidate may start, or end, for models that score both apart.
MAX_PLACES = 1000


def bound_candidates(model: Any, most: int = MAX_CANDIDATES) -> None:
    """Make a model of the library consider at most `most` candidates of a text; its batches have one text each."""
    (_bound_places if model.config.span_mode == "token_level" else _bound_spans)(model, most)


def _bound_spans(model: Any, most: int) -> None:
    select = model.select_span_target_embedding

    def selected(vectors: Any, scores: Any, is_span: Any, labels: Any, threshold: float, **others: Any) -> Any:
        best = scores.sigmoid().amax(-1).flatten() * is_span.flatten()
        return select(vectors, scores, is_span, labels, max(threshold, _next_best(best, most)), **others)

    model.select_span_target_embedding = selected


def _bound_places(model: Any, most: int) -> None:
    from gliner.modeling.base import extract_spans_from_tokens

    represent = model.represent_spans

    def represented(
        words: Any, mask: Any, prompts: Any, spans: Any, is_span: Any, labels: Any, threshold: float, **others: Any
    ) -> Any:
        if spans is None:
            scores = model.scorer(words, prompts)
            starts, ends = scores.sigmoid().unbind(-1)[:2]
            least = max(threshold, *(_next_best(each.flatten(), MAX_PLACES) for each in (starts, ends)))
            spans, is_span = extract_spans_from_tokens(scores, threshold=least)
            if spans.shape[1] > most:
                first, last = spans[0].unbind(-1)
                kept = torch.minimum(starts[0, first], ends[0, last]).amax(-1).topk(most).indices.sort().values
                spans, is_span = spans[:, kept], is_span[:, kept]
            spans = spans * is_span.unsqueeze(-1)
        return represent(words, mask, prompts, spans, is_span, labels, threshold, **others)

    model.represent_spans = represented


def _next_best(scores: torch.Tensor, most: int) -> float:
    """Return a threshold that at most `most` scores exceed; 0 if there are no more."""
    return float(scores.topk(most + 1).values[-1]) if len(scores) > most else 0.0
