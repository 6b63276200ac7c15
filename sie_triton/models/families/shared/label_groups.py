"""Groups of labels: a request asks several questions about a text, each with its own labels."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sie_triton.contract import Class, Findings, Label, Parameter, ParameterValue
from sie_triton.contract.parameters import parsed_json
from sie_triton.contract.transforms.classes import Floats
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2.checked import LIMITS, name_of
from sie_triton.models.families.gliner2.request import labels_of

LABEL_GROUPS = Parameter(
    "label_groups",
    str,
    max_characters=LIMITS.max_characters,
    doc="instead of labels, JSON object: group → its labels; classes are named group.label",
)
WHERE = f"parameter {LABEL_GROUPS.name}"


class LabelGroup(NamedTuple):
    name: str
    labels: tuple[Label, ...]


def groups_of(options: Mapping[str, ParameterValue]) -> tuple[LabelGroup, ...]:
    """Return the groups of a request, none if it sends none; InputError names the group and what is allowed."""
    text = str(options.get(LABEL_GROUPS.name, ""))
    return _read(text) if text.strip() else ()


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[LabelGroup, ...]:
    given = parsed_json(text, WHERE)
    if not isinstance(given, dict) or not given:
        raise InputError.at(WHERE, "must be a JSON object: group → list of labels")
    most = LIMITS.max_classes
    groups = tuple(
        LabelGroup(
            name_of(name, f"{WHERE}: group"), labels_of(labels, f"{WHERE}: {name[:80]}", most, has_thresholds=False)
        )
        for name, labels in given.items()
    )
    total = sum(len(group.labels) for group in groups)
    if total > most:
        raise InputError.at(WHERE, f"has {total} labels; at most {most} are allowed")
    return groups


def labels_or_groups(labels: Sequence[Label], options: Mapping[str, ParameterValue]) -> tuple[LabelGroup, ...]:
    """Return the groups of a request, none if it sends labels; InputError unless it sends one of both."""
    groups = groups_of(options)
    if bool(labels) == bool(groups):
        told = "cannot be sent with labels" if groups else "and labels are empty; send one of them"
        raise InputError.at(WHERE if groups else "labels", f"{LABEL_GROUPS.name} {told}")
    return groups


def grouped_findings(groups: Sequence[LabelGroup], scores: Sequence[Floats], least: float, multi: bool) -> Findings:
    """Return the classes of all groups from the score `least` up, best first; `scores`: [labels] of each group.

    `data` has the best label of each group or, with `multi`, all from `least` up; None, or no label, if none has it.
    """
    classes: list[Class] = []
    data: dict[str, Any] = {}
    for group, of_group in zip(groups, scores, strict=True):
        chosen = [i for i in np.argsort(-of_group, kind="stable").tolist() if of_group[i] >= least]
        classes += [Class(f"{group.name}.{group.labels[i].name}", float(of_group[i])) for i in chosen]
        names = [group.labels[i].name for i in chosen]
        data[group.name] = names if multi else next(iter(names), None)
    return Findings(classifications=sorted(classes, key=lambda each: -each.score), data=data)
