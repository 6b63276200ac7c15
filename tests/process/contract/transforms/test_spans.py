"""The choice of spans equals that of gliner's greedy search, on random candidates."""

import numpy as np
import pytest
from gliner.decoding.decoder import BaseDecoder, Span

from sie_triton.contract.transforms.spans import chosen, merged_adjacent


class Decoder(BaseDecoder):
    def decode(self):
        """Do nothing: the base class requires the method."""


def candidates(rng, count):
    """Return int32 [n, 3] and float32 [n]: each span and label once, in order; some scores are equal."""
    starts, widths, labels = rng.integers(0, 30, count), rng.integers(1, 8, count), rng.integers(0, 3, count)
    spans = np.unique(np.stack([starts, starts + widths, labels], 1), axis=0).astype(np.int32)
    return spans, (rng.integers(1, 40, len(spans)) / 40).astype(np.float32)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("multi_label", [True, False])
def test_selected_spans_match_gliners_decoder(flat, multi_label):
    rng = np.random.default_rng(0)
    for _ in range(200):
        spans, scores = candidates(rng, rng.integers(0, 60))
        given = [
            Span(start, end - 1, str(label), float(score))  # its ends are inclusive
            for (start, end, label), score in zip(spans.tolist(), scores, strict=True)
        ]
        expected = Decoder(None).greedy_search(given, flat, multi_label=multi_label)
        kept = chosen(spans, scores, flat=flat, multi_label=multi_label)
        assert [tuple(spans[i]) for i in kept] == [(s.start, s.end + 1, int(s.entity_type)) for s in expected]


def test_only_the_top_scoring_spans_are_considered():
    spans = np.array([[0, 1, 0], [2, 3, 0], [4, 5, 0]], np.int32)
    assert chosen(spans, np.array([0.1, 0.9, 0.5], np.float32), most=2).tolist() == [1, 2]


def test_adjacent_spans_of_one_label_are_merged():
    spans = np.array([[11, 13, 0], [0, 3, 0], [4, 8, 0], [8, 9, 1], [9, 10, 0]], np.int32)
    scores = np.array([0.5, 0.6, 0.7, 0.8, 0.9], np.float32)
    merged, best = merged_adjacent(spans, scores)
    assert merged.tolist() == [[0, 8, 0], [8, 9, 1], [9, 13, 0]]
    assert best.tolist() == pytest.approx([0.7, 0.8, 0.9])
    assert merged_adjacent(spans[:0], scores[:0])[0].shape == (0, 3)
