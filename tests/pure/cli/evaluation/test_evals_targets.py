"""Targets: the file, and which values miss them."""

import math

import pytest

from sie_triton.cli.evaluation.targets import misses, read_targets
from sie_triton.errors import InputError


def test_targets_are_those_of_the_model(tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text("org/a: {ndcg_at_10: 0.4, query_p50_ms: 7}\norg/b: {map_at_1000: 0.1}\n")
    assert read_targets(path, "org/a") == {"ndcg_at_10": 0.4, "query_p50_ms": 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("org/b: {ndcg_at_10: 0.4}", "has no metrics for org/a, but for org/b; write the model's name"),
        ("- 1", "has no metrics for org/a, but for nothing"),
        ("org/a: {ndcg: 0.4}", "names 'ndcg'; metrics are ndcg_at_10, map_at_1000"),
        ("org/a: {ndcg_at_10: high}", "ndcg_at_10 must be a number above 0, not 'high'"),
        ("org/a: {ndcg_at_10: true}", "must be a number above 0, not True"),
        ("org/a: {ndcg_at_10: 0}", "must be a number above 0, not 0"),
        ("org/a: {ndcg_at_10: .nan}", "must be a number above 0, not nan"),
        ("org/a: {ndcg_at_10: 1, ndcg_at_10: 1}", "is not valid YAML: .*occurs twice"),
    ],
)
def test_faults_of_the_file(tmp_path, text, said):
    (tmp_path / "eval.yaml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_targets(tmp_path / "eval.yaml", "org/a")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read .*; give --targets FILE"):
        read_targets(tmp_path / "eval.yaml", "org/a")


@pytest.mark.parametrize(
    ("metric", "value", "is_missed"),
    [
        ("ndcg_at_10", 0.397, False),
        ("ndcg_at_10", 0.395, True),
        ("ndcg_at_10", 0.9, False),
        ("ndcg_at_10", 0.0, True),
        ("ndcg_at_10", math.nan, True),
        ("query_p99_ms", 0.403, False),
        ("query_p99_ms", 0.405, True),
        ("query_p99_ms", 0.1, False),
    ],
)
def test_a_value_may_be_a_hundredth_worse(metric, value, is_missed):
    missed = [*misses({metric: value}, {metric: 0.4, "recall_at_10": 1.0}, 0.01)]
    assert [each.metric for each in missed] == [metric] * is_missed
