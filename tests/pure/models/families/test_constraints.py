"""Labels of tokens decoded by a calibration: equal to the best of all paths; other files are refused."""

import json

import numpy as np
import pytest

from sie_triton.errors import LoadError
from sie_triton.models.families.token_classification.constraints import CALIBRATION, Constraints
from tests.support.span_labels import BIASES, LABELS, calibration, searched, spans, tried

LAST = "transition_bias_end_to_start"

DECODER = Constraints.of(LABELS, BIASES)


def drawn(seed, num_tokens):
    logits = np.random.default_rng(seed).normal(scale=2, size=(num_tokens, len(LABELS)))
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
def test_the_path_is_the_best_of_all(num_tokens):
    for seed in range(8):
        scores = drawn(seed, num_tokens)
        assert tuple(LABELS[i] for i in DECODER.path(scores)) == tried(scores)


@pytest.mark.parametrize("num_tokens", [9, 400])
def test_entities_are_those_of_the_best_path(num_tokens):
    scores = drawn(3, num_tokens)
    places = np.stack([np.arange(num_tokens), np.arange(num_tokens) + 1], 1).astype(np.int32)
    found, score = DECODER.entities(scores, places)
    path = searched(scores)
    kinds = [label.partition("-")[2] for label in LABELS]
    expected = spans(path)
    assert [(start, end - 1, kinds[label - len(LABELS)]) for start, end, label in found.tolist()] == expected
    of_labels = np.exp([row[LABELS.index(label)] for row, label in zip(scores, path, strict=True)])
    assert score == pytest.approx([of_labels[start : end + 1].mean() for start, end, _ in expected])
    assert num_tokens < 100 or len(found) > 50


def test_what_is_only_white_space_is_no_entity():
    scores = np.full((1, len(LABELS)), -9, np.float32)
    scores[0, LABELS.index("S-person")] = 0
    assert len(DECODER.entities(scores, np.array([[0, 1]], np.int32))[0]) == 1
    assert len(DECODER.entities(scores, np.array([[1, 0]], np.int32))[0]) == 0
    assert len(DECODER.entities(scores[:0], np.empty((0, 2), np.int32))[0]) == 0


@pytest.mark.parametrize(
    ("saved", "labels", "reason", "named"),
    [
        (calibration(), LABELS[:-1], "unsupported", "labels"),
        (calibration(), ("O", "B-person", "I-person"), "unsupported", "labels"),
        (calibration({**BIASES, "transition_bias_new": 0}), LABELS, "unsupported", "biases: must have the keys"),
        ({}, LABELS, "unsupported", "biases: must have the keys"),
        (calibration(BIASES | {LAST: "1"}), LABELS, "corrupt", LAST),
        (calibration(BIASES | {LAST: 1e10}), LABELS, "corrupt", LAST),
        (calibration(BIASES | {LAST: np.nan}), LABELS, "corrupt", LAST),
    ],
)
def test_another_calibration_is_refused(tmp_path, saved, labels, reason, named):
    (tmp_path / CALIBRATION).write_text(json.dumps(saved))
    with pytest.raises(LoadError, match=named) as refused:
        Constraints.read(tmp_path, labels)
    assert refused.value.reason == reason


def test_a_model_without_a_calibration_has_no_constraints(tmp_path):
    assert Constraints.read(tmp_path, LABELS) is None
