"""Parameters of a request for relations, classes, and structures by a schema; entities are requested by labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sie_triton.contract import Label, Parameter, ParameterValue
from sie_triton.contract.parameters import parsed_json
from sie_triton.contract.transforms.overlap import POLICIES
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2 import output_schema
from sie_triton.models.families.gliner2.checked import LIMITS, description_of, name_of, only, threshold_of
from sie_triton.models.families.gliner2.output_schema import Schema, Structure, read_schema
from sie_triton.models.families.shared.thresholds import THRESHOLD

OVERLAP_POLICY = Parameter(
    "overlap_policy",
    str,
    POLICIES,
    doc="overlapping results of a label or field to keep: allow: all; nested: those that cross no better one; longest: "
    "those inside no other; flat: disjoint, of the highest total score; default: the best without overlaps",
)
RELATION_LABELS = Parameter(
    "relation_labels",
    str,
    max_characters=LIMITS.max_characters,
    doc="relations to extract: comma-separated or JSON list, or JSON object: name → description or {description, "
    "threshold}",
)
CLASSES = Parameter(
    "classes",
    str,
    max_characters=LIMITS.max_characters,
    doc="JSON object: task → list of labels, or {labels, multi_label, threshold}; labels may be an object: name → "
    "description",
)
OUTPUT_SCHEMA = Parameter(
    output_schema.PARAMETER,
    str,
    max_characters=LIMITS.max_characters,
    doc="JSON Schema of the object to return in data",
)
PARAMETERS = (THRESHOLD, OVERLAP_POLICY, RELATION_LABELS, CLASSES, OUTPUT_SCHEMA)


class ClassificationTask(NamedTuple):
    """A classification task: one class or, with `multi_label`, all from the threshold up, at least the best."""

    name: str
    labels: tuple[Label, ...]
    multi_label: bool = False
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class ExtractionRequest:
    """Results to extract, in the order of the prompt. Entities come between structures and relations."""

    schema: Schema | None = None
    relations: tuple[Label, ...] = ()
    tasks: tuple[ClassificationTask, ...] = ()

    @property
    def structures(self) -> tuple[Structure, ...]:
        return self.schema.structures if self.schema else ()


def request_of(options: Mapping[str, ParameterValue]) -> ExtractionRequest:
    """Read the parameters of a request; raise InputError naming the parameter, the place in it, and what is allowed."""
    names = (OUTPUT_SCHEMA.name, RELATION_LABELS.name, CLASSES.name)
    return _read(*(str(options.get(name, "")) for name in names))


@lru_cache(maxsize=64)
def _read(schema: str, relations: str, classes: str) -> ExtractionRequest:
    request = ExtractionRequest(
        read_schema(schema) if schema.strip() else None,
        _relations(relations, f"parameter {RELATION_LABELS.name}") if relations.strip() else (),
        _tasks(classes, f"parameter {CLASSES.name}") if classes.strip() else (),
    )
    taken = {name for name, _ in request.schema.record.properties} if request.schema else set()
    for task in request.tasks:
        if task.name in taken:
            raise InputError.at(
                f"parameter {CLASSES.name}", f"{task.name[:80]!r} is also a property of output_schema; use another name"
            )
    return request


def _relations(text: str, where: str) -> tuple[Label, ...]:
    is_json = text.lstrip()[0] in "[{"
    given = parsed_json(text, where) if is_json else [each.strip() for each in text.split(",") if each.strip()]
    return labels_of(given, where, 256)


def _tasks(text: str, where: str) -> tuple[ClassificationTask, ...]:
    given = parsed_json(text, where)
    if not isinstance(given, dict) or not given:
        raise InputError.at(where, "must be a JSON object: task → list of labels")
    tasks = tuple(_task(name_of(name, f"{where}: task"), value, where) for name, value in given.items())
    total = sum(len(task.labels) for task in tasks)
    if total > LIMITS.max_classes:
        raise InputError.at(where, f"has {total} labels; at most {LIMITS.max_classes} are allowed")
    return tasks


def _task(name: str, given: Any, where: str) -> ClassificationTask:
    where = f"{where}: {name[:80]}"
    if isinstance(given, list):
        given = {"labels": given}
    given = only(given, ("labels", "multi_label", "threshold"), where)
    labels = labels_of(given.get("labels"), f"{where}: labels", LIMITS.max_classes, has_thresholds=False)
    multi_label = given.get("multi_label", False)
    if not isinstance(multi_label, bool):
        raise InputError.at(where, "multi_label must be true or false")
    return ClassificationTask(name, labels, multi_label, threshold_of(given.get("threshold"), where))


def labels_of(given: Any, where: str, most: int, *, has_thresholds: bool = True) -> tuple[Label, ...]:
    """Read a list of names, or an object with descriptions, without duplicates; InputError names `where`."""
    if not isinstance(given, list | dict) or not given:
        raise InputError.at(where, "must be a list of at least one name, or an object: name → description")
    if len(given) > most:
        raise InputError.at(where, f"has {len(given)} entries; at most {most} are allowed")
    described = (
        given if isinstance(given, dict) else {name_of(each, f"{where}[{i}]"): {} for i, each in enumerate(given)}
    )
    return tuple(_label(name_of(name, where), value, where, has_thresholds) for name, value in described.items())


def _label(name: str, given: Any, where: str, has_thresholds: bool) -> Label:
    where = f"{where}: {name[:80]}"
    if given is None or isinstance(given, str):
        return Label(name, description_of(given, where))
    given = only(given, ("description", "threshold") if has_thresholds else ("description",), where)
    return Label(name, description_of(given.get("description"), where), threshold_of(given.get("threshold"), where))
