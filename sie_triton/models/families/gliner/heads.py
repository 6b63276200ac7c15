"""GLiNER's heads: the words of one piece and its labels → spans with labels. Torch.

Computes what gliner computes, but shares work between spans: the first layer over the two ends of a span is a sum of
one term for each end, and the last layer is multiplied with the labels before it is applied to the spans.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.contract.limits import LIMITS

# Limits of numbers computed at once: for spans, and for pairs of a word and a label.
SPAN_NUMBERS = 2_000_000
PAIR_NUMBERS = 8_000_000

Ints = npt.NDArray[np.int64]


class Candidates(NamedTuple):
    """Spans or pairs: first and last word, or two entities, int64 [n]; label, int64 [n]; score, float32 [n].

    Ordered by first, last and label, so that the first of equal scores is kept.
    """

    first: Ints
    last: Ints
    label: Ints
    score: npt.NDArray[np.float32]

    def rows(self, which: Ints) -> "Candidates":
        return Candidates(self.first[which], self.last[which], self.label[which], self.score[which])

    def best(self) -> "Candidates":
        """Return the best candidates, as many as later steps use, in their present order."""
        if len(self.score) <= LIMITS.max_candidates:
            return self
        return self.rows(np.sort(np.argsort(-self.score, kind="stable")[: LIMITS.max_candidates]))


def two_layers(width: int, out: int, growth: int = 4) -> nn.Sequential:
    """Build two layers numbered as in gliner's checkpoints."""
    return nn.Sequential(nn.Linear(width, growth * out), nn.ReLU(), nn.Identity(), nn.Linear(growth * out, out))


def linear_layers(layers: nn.Module) -> list[nn.Linear]:
    return [layer for layer in layers.modules() if isinstance(layer, nn.Linear)]


class SpanMarker(nn.Module):
    """Layers of `span_mode` markerV0, or of marker; attribute names are those of the checkpoint."""

    def __init__(self, size: int, mode: str = "markerV0") -> None:
        super().__init__()
        growth = 4 if mode == "markerV0" else 2
        self.project_start, self.project_end = two_layers(size, size, growth), two_layers(size, size, growth)
        self.out_project = two_layers(2 * size, size) if mode == "markerV0" else nn.Linear(2 * size, size)


class SpanHead(nn.Module):
    """Scorer of spans of up to `max_width` words: one or two layers over both ends, multiplied with the label."""

    def __init__(self, size: int, max_width: int, mode: str) -> None:
        super().__init__()
        self._max_width = max_width
        self.marker = SpanMarker(size, mode)
        self.labels = two_layers(size, size)

    def of_labels(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the part for labels that is independent of words: [k, d] → [k, d]."""
        made: torch.Tensor = self.labels(states)
        return made

    def forward(self, words: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> Candidates:
        """Score spans: words [w, d], labels [k, d] from `of_labels`, thresholds [k]."""
        marker, size = self.marker, words.shape[1]
        first, *second = linear_layers(marker.out_project)
        starts = marker.project_start(words).relu() @ first.weight[:, :size].T + first.bias
        ends = marker.project_end(words).relu() @ first.weight[:, size:].T
        if not second:
            starts, ends = starts @ labels.T, ends @ labels.T
        widths = min(self._max_width, len(words))
        # Row i of this view holds the ends of the spans that start at word i.
        ends = torch.nn.functional.pad(ends, (0, 0, 0, widths - 1)).unfold(0, widths, 1).transpose(1, 2)
        step = max(1, SPAN_NUMBERS // (widths * max(starts.shape[1], len(labels))))
        logits = _last_layer(second, labels, widths * len(words))
        found = []
        for word in range(0, len(words), step):
            scored = logits(starts[word : word + step, None] + ends[word : word + step])
            found.append(_above(scored.float().sigmoid(), thresholds, word, len(words)))
        first_words, widths_found, labels_found, score = (
            torch.cat(each).cpu().numpy() for each in zip(*found, strict=True)
        )
        return Candidates(first_words, first_words + widths_found, labels_found, score)


class TaggingHead(nn.Module):
    """Scorer of each word as start, end and inside of an entity. The score of an entity is that of its worst word."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj_token, self.proj_label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.out_mlp = nn.Sequential(nn.Linear(3 * size, 4 * size), nn.Identity(), nn.ReLU(), nn.Linear(4 * size, 3))

    def of_labels(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the part for labels that is independent of words: [k, d] → [k, 5 d]."""
        size = states.shape[1]
        of_label = linear_layers(self.out_mlp)[0].weight[:, size : 2 * size]
        label, gate = torch.split(self.proj_label(states), size, 1)
        return torch.cat([label @ of_label.T, gate], 1)

    def forward(self, words: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> Candidates:
        """Score runs of words: words [w, d], labels [k, 5 d] from `of_labels`, thresholds [k]."""
        scores = self._scores(words, labels).float().sigmoid().cpu().numpy()
        return _runs(scores, thresholds.cpu().numpy())

    def _scores(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return logits, [w, k, 3]."""
        size, (first, second) = words.shape[1], linear_layers(self.out_mlp)
        of_word, _, of_both = torch.split(first.weight, size, 1)
        word, word_gate = torch.split(self.proj_token(words), size, 1)
        word, (label, label_gate) = word @ of_word.T + first.bias, torch.split(labels, [4 * size, size], 1)
        step = max(1, PAIR_NUMBERS // (4 * size * len(labels)))
        # Preallocated, to avoid fragmenting memory.
        scores = words.new_empty(len(words), len(labels), 3)
        for start in range(0, len(words), step):
            gates = word_gate[start : start + step, None] * label_gate
            hidden = gates @ of_both.T + word[start : start + step, None] + label
            scores[start : start + step] = second(hidden.relu_())
        return scores


def _last_layer(
    second: list[nn.Linear], labels: torch.Tensor, num_spans: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from sums over both ends of a span to logits; without a second layer, the sums are these."""
    if not second:
        return lambda sums: sums
    (layer,) = second
    size = layer.out_features
    # Multiply with the labels first if that takes fewer operations.
    if 4 * len(labels) * (size + num_spans) < num_spans * (4 * size + len(labels)):
        by_label, constant = labels @ layer.weight, labels @ layer.bias
        return lambda sums: sums.relu_() @ by_label.T + constant
    return lambda sums: layer(sums.relu_()) @ labels.T


def _above(
    scores: torch.Tensor, thresholds: torch.Tensor, first_word: int, num_words: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return word, width, label and score of spans above their label's threshold, as many as later steps use.

    scores are [words, widths, labels], for words from `first_word` on. Spans that end after the last word are dropped.
    """
    word, width, label = torch.nonzero(scores > thresholds, as_tuple=True)
    best = scores[word, width, label]
    word += first_word
    kept = torch.nonzero(word + width < num_words)[:, 0]
    if len(kept) > LIMITS.max_candidates:
        kept = kept[best[kept].topk(LIMITS.max_candidates).indices].sort().values
    return word[kept], width[kept], label[kept], best[kept]


def _runs(scores: npt.NDArray[np.float32], thresholds: npt.NDArray[np.float32]) -> Candidates:
    """Find runs from a start to an end of the same label, with every word inside; scores [w, k, 3]."""
    is_start, is_end = scores[..., 0] > thresholds, scores[..., 1] > thresholds
    is_inside = scores[..., 2] >= thresholds
    held: list[Candidates] = []
    num_held = 0
    for first, label in zip(*_starts(is_start & is_inside, scores), strict=True):
        outside = np.flatnonzero(~is_inside[first:, label])
        stop = first + int(outside[0]) if len(outside) else len(scores)
        lasts = first + np.flatnonzero(is_end[first:stop, label])
        if not len(lasts):
            continue
        worst = np.minimum.accumulate(scores[first:stop, label, 2])[lasts - first]
        worst = np.minimum(worst, np.minimum(scores[lasts, label, 1], scores[first, label, 0]))
        held.append(Candidates(np.full_like(lasts, first), lasts, np.full_like(lasts, label), worst))
        num_held += len(lasts)
        if num_held > 10 * LIMITS.max_candidates:  # drop all but the best
            held = [_joined(held).best()]
            num_held = LIMITS.max_candidates
    return _joined(held).best()


def _starts(where: npt.NDArray[np.bool_], scores: npt.NDArray[np.float32]) -> tuple[Ints, Ints]:
    """Return word and label of starts that can be among the best; no run scores more than its first word."""
    words, labels = np.nonzero(where)
    if len(words) > LIMITS.max_candidates:
        most = np.minimum(scores[words, labels, 0], scores[words, labels, 2])
        kept = np.sort(np.argsort(-most, kind="stable")[: LIMITS.max_candidates])
        words, labels = words[kept], labels[kept]
    return words, labels


def _joined(parts: list[Candidates]) -> Candidates:
    if not parts:
        none = np.empty(0, np.int64)
        return Candidates(none, none, none, np.empty(0, np.float32))
    return Candidates(*(np.concatenate(each) for each in zip(*parts, strict=True)))
