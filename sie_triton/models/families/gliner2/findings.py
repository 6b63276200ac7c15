"""Results of the forward passes over the pieces of a text → findings. Pure.

Findings of two pieces are returned once, with the better score: overlaps are resolved again among all pieces. A single
value, and a task with one class, is taken from the piece with the highest score. Lists are joined.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sie_triton.contract import Class, Entity, Findings, ParameterValue, Relation, Rows, place
from sie_triton.contract.arrays import Floats
from sie_triton.contract.transforms.overlap import resolved
from sie_triton.models.families.gliner2.output_schema import Leaf, Record
from sie_triton.models.families.gliner2.request import OVERLAP_POLICY, ClassificationTask, ExtractionRequest, request_of
from sie_triton.models.families.gliner2.tensors import CHOICE, CLASS_SCORES, PLACE_SCORES, PLACES
from sie_triton.models.families.shared.thresholds import least_score


class Value(NamedTuple):
    """A span of the text; if `end` is CHOICE, the choice with the number `start`."""

    start: int
    end: int
    score: float

    @property
    def is_in_text(self) -> bool:
        """False for the full stop that was added to the text."""
        return self.end == CHOICE or self.start < self.end


# Values by field, best first.
Instance = dict[int, list[Value]]


class Piece:
    """Results of one forward pass, by task."""

    def __init__(self, row: Rows) -> None:
        self._instances: dict[int, dict[int, Instance]] = {}
        self.classes: Floats = row[CLASS_SCORES.name]
        for (task, instance, field, start, end), score in zip(
            row[PLACES.name].tolist(), row[PLACE_SCORES.name].tolist(), strict=True
        ):
            instances = self._instances.setdefault(task, {})
            instances.setdefault(instance, {}).setdefault(field, []).append(Value(start, end, score))

    def instances(self, task: int) -> list[Instance]:
        """Return the instances that are not empty."""
        return [instance for _, instance in sorted(self._instances.get(task, {}).items())]


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    request, pieces = request_of(options), [Piece(row) for row in rows]
    policy = str(options.get(OVERLAP_POLICY.name, ""))
    tasks = np.cumsum([bool(each.fields) for each in request.structures], dtype=np.int64).tolist()
    first = (tasks[-1] if tasks else 0) + 1
    classes, by_task = _classes(request.tasks, pieces, least_score(options))
    data = _Data(pieces, tasks, policy).of(request) if request.schema else {}
    return Findings(
        _entities(pieces, policy),
        [each for i, label in enumerate(request.relations) for each in _relations(pieces, first + i, label.name)],
        classes,
        {**data, **by_task} or None,
    )


def _entities(pieces: Sequence[Piece], policy: str) -> list[Entity]:
    """Return entities in the order of the text."""
    by_label: dict[int, list[list[Value]]] = {}
    for piece in pieces:
        for instance in piece.instances(0):
            for label, values in instance.items():
                by_label.setdefault(label, []).append(values)
    found = [
        Entity(value.start, value.end, label, value.score)
        for label, values in sorted(by_label.items())
        for value in together(values, policy)
    ]
    return sorted(found, key=lambda each: each.start)


def _relations(pieces: Sequence[Piece], task: int, name: str) -> list[Relation]:
    found: dict[tuple[int, ...], Relation] = {}
    for number, piece in enumerate(pieces):
        for i, instance in enumerate(piece.instances(task)):
            ends = [next(iter(instance.get(field, ())), None) for field in (0, 1)]
            head, tail = ends
            if head is None or tail is None or not (head.is_in_text and tail.is_in_text):
                continue
            one = Relation(head.start, head.end, tail.start, tail.end, name, min(head.score, tail.score))
            # One piece may contain a relation twice; both are kept, as in the library.
            key = one[:4] if len(pieces) > 1 else (number, i)
            if key not in found or one.score > found[key].score:
                found[key] = one
    return list(found.values())


def _classes(
    tasks: Sequence[ClassificationTask], pieces: Sequence[Piece], usual: float
) -> tuple[list[Class], dict[str, Any]]:
    """Return the classes with their scores, and the names of the classes by task."""
    found: list[Class] = []
    by_task: dict[str, Any] = {}
    start = 0
    for task in tasks:
        scores = np.stack([piece.classes[start : start + len(task.labels)] for piece in pieces])
        start += len(task.labels)
        if task.multi_label:
            best = scores.max(0)
            least = np.float32(usual if task.threshold is None else task.threshold)
            chosen = np.flatnonzero(best >= least).tolist() or [int(best.argmax())]
        else:
            best = scores[scores.max(1).argmax()]
            chosen = [int(best.argmax())]
        told = [Class(task.labels[i].name, float(best[i])) for i in chosen]
        found += told
        names = [each.label for each in told]
        by_task[task.name] = names if task.multi_label else names[0]
    return found, by_task


class _Data:
    """Values in the form of the schema. `tasks`: the task of each structure."""

    def __init__(self, pieces: Sequence[Piece], tasks: Sequence[int], policy: str) -> None:
        self._pieces, self._tasks, self._policy = pieces, tasks, policy

    def of(self, request: ExtractionRequest) -> dict[str, Any]:
        assert request.schema is not None
        self._structures = request.schema.structures
        return self._single(request.schema.record)

    def _single(self, record: Record) -> dict[str, Any]:
        """Return an object from the first instance in each piece."""
        firsts = [each[0] for each in self._instances(record.structure) if each]
        return {
            name: self._leaf(inner, firsts) if isinstance(inner, Leaf) else self._record(inner)
            for name, inner in record.properties
        }

    def _record(self, record: Record) -> Any:
        """Return an object, or all objects of a list; None if nothing of an object is found."""
        if not record.is_list:
            found = self._single(record)
            return found if has_any(found) else None
        instances = [
            {name: self._leaf(leaf, [instance]) for name, leaf in record.properties if isinstance(leaf, Leaf)}
            for of_piece in self._instances(record.structure)
            for instance in of_piece
        ]
        told = [each for each in instances if has_any(each)]
        return [each for i, each in enumerate(told) if len(self._pieces) == 1 or each not in told[:i]]

    def _instances(self, structure: int) -> list[list[Instance]]:
        if not self._structures[structure].fields:
            return []
        return [piece.instances(self._tasks[structure]) for piece in self._pieces]

    def _leaf(self, leaf: Leaf, instances: Sequence[Instance]) -> Any:
        found = [instance[leaf.field] for instance in instances if leaf.field in instance]
        if leaf.values:
            return _chosen(leaf, [value for values in found for value in values])
        if leaf.is_list:
            return [place(each.start, each.end, leaf.kind) for each in together(found, self._policy)]
        best = max((values[0] for values in found), key=lambda each: each.score, default=None)
        return place(best.start, best.end, leaf.kind) if best is not None and best.is_in_text else None


def _chosen(leaf: Leaf, found: Sequence[Value]) -> Any:
    if leaf.is_list:
        return [leaf.values[i] for i in sorted({value.start for value in found})]
    best = max(found, key=lambda each: each.score, default=None)
    return None if best is None else leaf.values[best.start]


def together(found: Sequence[Sequence[Value]], policy: str) -> list[Value]:
    """Join the values of all pieces, best first."""
    values = [value for each in found for value in each]
    if len(found) > 1:
        values = [value for value in values if value.is_in_text]
        spans = np.array([value[:2] for value in values], np.int64).reshape(-1, 2)
        kept = resolved(spans, np.array([value.score for value in values], np.float64), policy)
        values = [values[i] for i in kept.tolist()]
    return [value for value in values if value.is_in_text]


def has_any(found: Mapping[str, Any]) -> bool:
    return any(value is not None and value != [] for value in found.values())
