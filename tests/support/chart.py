"""The Helm chart, rendered by helm itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

from tools.pages.chart import CHART

NAMESPACE = "prod"

Object = dict[str, Any]

# Kinds of objects that make Pods; the DaemonSet and the Job have no part of a cluster in them.
PARTS = ("Deployment", "StatefulSet")
KINDS = (*PARTS, "DaemonSet", "Job")


def rendered(values: dict[str, Any], chart: Path = CHART) -> list[Object]:
    """Return the objects of a release `sie`."""
    texts = Chart.load(str(chart)).render(values, name="sie", namespace=NAMESPACE)
    return [each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(objects: list[Object], kind: str, name: str) -> Object:
    """Return the specification of the Pods of an object."""
    pod: Object = named(objects, kind, name)["spec"]["template"]["spec"]
    return pod


def pod_templates(objects: list[Object]) -> Iterator[Object]:
    for each in objects:
        if each["kind"] in KINDS:
            yield each["spec"]["template"]
