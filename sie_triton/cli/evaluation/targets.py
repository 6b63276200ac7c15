"""Expected values of metrics, from a YAML file with one mapping of metrics for each model."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from sie_triton.cli.evaluation.metrics import METRICS, is_better_lower
from sie_triton.errors import InputError
from sie_triton.settings.yaml_reader import MAX_CHARACTERS, read_yaml


class Miss(NamedTuple):
    """A metric that is worse than its target by more than the tolerance."""

    metric: str
    value: float
    target: float

    def __str__(self) -> str:
        side = "above" if is_better_lower(self.metric) else "below"
        return f"{self.metric}: {self.value:.4g} is {side} the target {self.target:.4g}"


def read_targets(path: Path, model: str) -> dict[str, float]:
    """Return the targets of `model` by metric; InputError if the file has none or one that is not valid."""
    try:
        with path.open(encoding="utf-8") as file:
            content = read_yaml(file.read(MAX_CHARACTERS + 1))
    except OSError as exc:
        raise InputError(f"targets: {path} cannot be read ({exc.strerror}); give --targets FILE") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise InputError(f"targets: {path} is not valid YAML: {exc}") from exc
    if not isinstance(content, dict) or not isinstance(content.get(model), dict):
        named = ", ".join(map(str, content)) if isinstance(content, dict) else "nothing"
        raise InputError(
            f"targets: {path} has no metrics for {model}, but for {named}; write the model's name with metrics below "
            "it, such as ndcg_at_10: 0.4"
        )
    found: dict[str, float] = content[model]
    for metric, value in found.items():
        _check(path, metric, value)
    return found


def misses(values: Mapping[str, float], targets: Mapping[str, float], tolerance: float) -> Iterator[Miss]:
    """Yield the metrics that are worse than their target by more than `tolerance`, a share of the target.

    >>> [str(each) for each in misses({"ndcg_at_10": 0.39, "query_p50_ms": 5.0}, {"ndcg_at_10": 0.4}, 0.01)]
    ['ndcg_at_10: 0.39 is below the target 0.4']
    >>> [str(each) for each in misses({"query_p50_ms": 5.0}, {"query_p50_ms": 4.0}, 0.01)]
    ['query_p50_ms: 5 is above the target 4']
    """
    for metric, target in targets.items():
        if metric in values:
            value = values[metric]
            share = target / value if is_better_lower(metric) else value / target
            if not share >= 1 - tolerance:
                yield Miss(metric, value, target)


def _check(path: Path, metric: object, value: object) -> None:
    if metric not in METRICS:
        raise InputError(f"targets: {path} names {metric!r}; metrics are {', '.join(METRICS)}")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not value > 0:  # type: ignore[operator]  # it is a number here
        raise InputError(f"targets: {path}: {metric} must be a number above 0, not {value!r}")
