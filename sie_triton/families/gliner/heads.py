"""GLiNER's heads: the words of one piece against its labels → which spans have which label. Torch.

As gliner computes them, with what is the same for many spans computed once: the first layer over a span's two ends is
a sum of one term an end, and the last one is multiplied with the labels before it meets the spans.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

# So many numbers of spans, and of pairs of a word and a label, are computed at once.
SPAN_NUMBERS = 2_000_000
PAIR_NUMBERS = 8_000_000

Ints = npt.NDArray[np.int64]


class Found(NamedTuple):
    """Candidates: first and last word, int64 [n]; label, int64 [n]; score, float32 [n].

    By first word, last word and label: of equal scores the first is kept.
    """

    first: Ints
    last: Ints
    label: Ints
    score: npt.NDArray[np.float32]


def two_layers(width: int, out: int) -> nn.Sequential:
    """As gliner numbers them in a checkpoint."""
    return nn.Sequential(nn.Linear(width, 4 * out), nn.ReLU(), nn.Identity(), nn.Linear(4 * out, out))


def linear_layers(layers: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


class SpanMarker(nn.Module):
    """Its names in a checkpoint: of `span_mode` markerV0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project_start, self.project_end = two_layers(size, size), two_layers(size, size)
        self.out_project = two_layers(2 * size, size)


class SpanHead(nn.Module):
    """Spans of up to `max_width` words: two layers of both ends · label."""

    def __init__(self, size: int, max_width: int) -> None:
        super().__init__()
        self._max_width = max_width
        self.marker = SpanMarker(size)
        self.labels = two_layers(size, size)

    def forward(self, words: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> Found:
        """words [w, d], labels [k, d], thresholds [k]."""
        labels, marker = self.labels(labels), self.marker
        first, second = linear_layers(marker.out_project)
        size, widths = words.shape[1], min(self._max_width, len(words))
        starts = marker.project_start(words).relu() @ first.weight[:, :size].T + first.bias
        ends = marker.project_end(words).relu() @ first.weight[:, size:].T
        # Row i of this view: the ends of the spans that start at word i.
        ends = torch.nn.functional.pad(ends, (0, 0, 0, widths - 1)).unfold(0, widths, 1).transpose(1, 2)
        few = len(labels) < size
        by_label, constant = labels @ second.weight, labels @ second.bias
        step = max(1, SPAN_NUMBERS // (widths * starts.shape[1]))
        found = []
        for word in range(0, len(words), step):
            spans = (starts[word : word + step, None] + ends[word : word + step]).relu_()
            logits = spans @ by_label.T + constant if few else second(spans) @ labels.T
            scores = logits.float().sigmoid()
            start, width, label = torch.nonzero(scores > thresholds, as_tuple=True)
            found.append((start + word, start + word + width, label, scores[start, width, label]))
        first_words, last_words, which, best = (torch.cat(each).cpu().numpy() for each in zip(*found, strict=True))
        inside = last_words < len(words)
        return Found(first_words[inside], last_words[inside], which[inside], best[inside])


class TokenHead(nn.Module):
    """Each word as start, end and inside of an entity; an entity is as good as the worst of its words."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj_token, self.proj_label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.out_mlp = nn.Sequential(nn.Linear(3 * size, 4 * size), nn.Identity(), nn.ReLU(), nn.Linear(4 * size, 3))

    def forward(self, words: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> Found:
        """words [w, d], labels [k, d], thresholds [k]."""
        scores = self._scores(words, labels).float().sigmoid().cpu().numpy()
        return _runs(scores, thresholds.cpu().numpy())

    def _scores(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """[w, k, 3]."""
        size, (first, second) = words.shape[1], linear_layers(self.out_mlp)
        of_word, of_label, of_both = torch.split(first.weight, size, 1)
        word, word_gate = torch.split(self.proj_token(words), size, 1)
        label, label_gate = torch.split(self.proj_label(labels), size, 1)
        word, label = word @ of_word.T + first.bias, label @ of_label.T
        step = max(1, PAIR_NUMBERS // (4 * size * len(labels)))
        chunks = []
        for start in range(0, len(words), step):
            gates = word_gate[start : start + step, None] * label_gate
            hidden = gates @ of_both.T + word[start : start + step, None] + label
            chunks.append(second(hidden.relu_()))
        return torch.cat(chunks)


def _runs(scores: npt.NDArray[np.float32], thresholds: npt.NDArray[np.float32]) -> Found:
    """From a start to an end of the same label where every word is inside; scores [w, k, 3]."""
    is_start, is_end = scores[..., 0] > thresholds, scores[..., 1] > thresholds
    is_inside = scores[..., 2] >= thresholds
    found: list[tuple[int, int, int, float]] = []
    for first, label in zip(*np.nonzero(is_start & is_inside), strict=True):
        outside = np.flatnonzero(~is_inside[first:, label])
        stop = first + int(outside[0]) if len(outside) else len(scores)
        lasts = first + np.flatnonzero(is_end[first:stop, label])
        if not len(lasts):
            continue
        worst = np.minimum.accumulate(scores[first:stop, label, 2])[lasts - first]
        worst = np.minimum(worst, np.minimum(scores[lasts, label, 1], scores[first, label, 0]))
        found += [(int(first), int(last), int(label), score) for last, score in zip(lasts, worst, strict=True)]
    firsts, ends, labels, best = zip(*found, strict=True) if found else ((), (), (), ())
    first_words, last_words, found_labels = (np.array(each, np.int64) for each in (firsts, ends, labels))
    return Found(first_words, last_words, found_labels, np.array(best, np.float32))
