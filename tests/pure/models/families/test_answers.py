"""Differences between two computations of the same answers: which are accepted, and which are named."""

import numpy as np
import pytest

from sie_triton.contract import ENCODE_OUTPUTS, Extraction, Model
from sie_triton.models.families.answers import difference
from sie_triton.models.families.gliner import Gliner
from tests.support.stages import spec

ROWS = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
LENGTHS = np.array([1, 3], np.int32)
SPARSE = {
    "sparse_indices": np.array([3, 7, 9, 11], np.int32),
    "sparse_values": np.array([1, 0.5, 0.1, 2], np.float32),
    "sparse_lengths": LENGTHS,
}


def dense(**outputs):
    return Model(spec(dims=dict.fromkeys(outputs, 64)), (), {name: ENCODE_OUTPUTS[name] for name in outputs})


def noise(share):
    return ROWS + share * np.random.default_rng(1).normal(size=ROWS.shape).astype(np.float32)


def test_vectors_are_compared_by_cosine():
    model = dense(dense=1)
    assert difference(model, {"dense": ROWS}, {"dense": 3 * noise(0.1)}) == ""
    assert difference(model, {"dense": ROWS}, {"dense": noise(0.4)}).startswith("dense: a cosine of 0.9")
    spoiled = ROWS.copy()
    spoiled[2] *= -1
    assert "a cosine of -1.000" in difference(model, {"dense": ROWS}, {"dense": spoiled})
    zeros = np.zeros_like(ROWS)
    assert difference(model, {"dense": zeros}, {"dense": zeros}) == ""
    assert difference(model, {"dense": zeros}, {"dense": ROWS}) != ""


def test_tokens_are_compared_by_their_item():
    model = dense(multivector=1)
    before = {"multivector": ROWS, "multivector_lengths": LENGTHS}
    assert difference(model, before, before | {"multivector": noise(0.1)}) == ""
    one_of_three = ROWS.copy()
    one_of_three[3] *= -1
    assert "a cosine of 0.333" in difference(model, before, before | {"multivector": one_of_three})


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"sparse_values": np.array([1.2, 0.52, 0.1, 2.1], np.float32)}, True),
        ({"sparse_indices": np.array([3, 7, 10, 11], np.int32)}, True),  # a light entry
        ({"sparse_indices": np.array([3, 7, 9, 12], np.int32)}, False),  # a heavy one
        ({"sparse_values": np.array([1, 2, 0.1, 0.5], np.float32)}, False),
        ({name: values[:1] for name, values in SPARSE.items()} | {"sparse_lengths": np.array([1, 0])}, False),
    ],
    ids=["values", "a light entry", "a heavy entry", "order", "empty"],
)
def test_sparse_vectors_are_compared_by_cosine(changes, is_same):
    assert (difference(dense(sparse=1), SPARSE, SPARSE | changes) == "") == is_same


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ([0.2, 0.8], [0.22, 0.78], True),
        ([0.815, 0.620, 0.528, 0.555], [0.853, 0.780, 0.568, 0.076], False),
        ([0.0, 1.0], [0.0, 1.0], True),
        ([1e-5, 0.9], [1e-3, 0.9], False),  # close, but a hundred times as probable
        ([-11.0, -8.0], [-10.5, -8.1], True),
        ([-11.0, -8.0], [-8.5, -8.0], False),
        ([0.5, -0.3], [0.9, -0.3], False),
    ],
    ids=str,
)
def test_scores_are_compared_as_probabilities_and_as_logits(before, after, is_same):
    rows = [{"scores": np.array(each, np.float32)} for each in (before, after)]
    model = Model(spec(dims={}, tasks=("score",)), (), {}, scores_pairs=True)
    assert (difference(model, *rows) == "") == is_same


def test_entities_are_compared_by_their_place_whatever_their_order():
    model = Model(spec(dims={}, tasks=("extract",)), (), {}, extraction=Extraction(Gliner.extraction.computed))

    def rows(spans, scores):
        lengths = np.array([len(spans)], np.int32)
        return {
            "spans": np.array(spans, np.int32).reshape(-1, 3),
            "span_scores": np.array(scores, np.float32),
            "span_lengths": lengths,
        }

    before = rows([[0, 1, 0], [2, 3, 0], [2, 3, 1]], [0.9, 0.3, 0.4])
    assert difference(model, before, rows([[2, 3, 0], [0, 1, 0], [2, 3, 1]], [0.3, 0.9, 0.4])) == ""
    assert difference(model, before, rows([[2, 3, 0], [0, 1, 0], [2, 3, 1]], [0.9, 0.3, 0.4])) != ""
    assert difference(model, before, rows([[2, 3, 0], [2, 3, 1]], [0.3, 0.4])) == ""
    assert "1 of 3 results are the same" in difference(model, before, rows([[0, 1, 0]], [0.9]))
    assert difference(model, rows([], []), rows([], [])) == ""
