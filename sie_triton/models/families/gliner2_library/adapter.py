"""Texts and requests through the library gliner2; its results as the places and scores of the family gliner2."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Batch, Label, ParameterValue, Rows
from sie_triton.contract.arrays import Floats, Ints, item_lengths
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import Engine
from sie_triton.models.families.gliner2.output_schema import Leaf, Record
from sie_triton.models.families.gliner2.request import OVERLAP_POLICY, ExtractionRequest, request_of
from sie_triton.models.families.gliner2.tensors import CHOICE, CLASS_SCORES, PLACE_SCORES, PLACES
from sie_triton.models.families.gliner2.words import word_spans
from sie_triton.models.families.gliner2_library import ENTITIES, PACKAGES, RELATIONS
from sie_triton.models.families.gliner_library.adapter import GlinerLibraryAdapter, loaded_by
from sie_triton.models.families.shared.labels.spans import scored
from sie_triton.models.families.shared.thresholds import least_score

# A place with its task, instance and field, as in PLACES, and its score.
Place = tuple[int, int, int, int, int, float]


class Gliner2LibraryAdapter(GlinerLibraryAdapter):
    def forward(self, batch: Batch) -> Rows:
        places: list[tuple[Ints, Floats]] = []
        classes: list[Floats] = []
        for (text, labels), options in zip(self.items(batch), batch.options, strict=True):
            request = request_of(options)
            found = self._extracted(text, labels, request, options)
            each = list(chain(_entities(found, labels), _structures(found, request), _relations(found, request)))
            ends = [(*place[:3], *(min(end, len(text)) for end in place[3:5])) for place in each]
            rows = np.array(ends, np.int32).reshape(-1, 5)
            places.append((rows, np.array([place[5] for place in each], np.float32)))
            classes.append(_class_scores(found, request))
        scores = {CLASS_SCORES.name: np.concatenate(classes), CLASS_SCORES.lengths: item_lengths(classes)}
        return {**scored(places, PLACES, PLACE_SCORES), **scores}

    def _extracted(
        self,
        text: str,
        labels: Sequence[Label],
        request: ExtractionRequest,
        options: Mapping[str, ParameterValue],
    ) -> Mapping[str, Any]:
        """Return the library's results, by the names of tasks; none for a text without words."""
        if not text.strip():
            return {}
        found: Mapping[str, Any] = self._model.extract(
            text,
            _schema(self._model, labels, request),
            threshold=least_score(options),
            include_confidence=True,
            include_spans=True,
            overlap_policy=str(options.get(OVERLAP_POLICY.name, "")) or None,
        )
        return found


def _schema(model: Any, labels: Sequence[Label], request: ExtractionRequest) -> Any:
    """Return the request as the library has it."""
    schema = model.create_schema()
    leaves = _leaves(request.schema.record) if request.schema else ()
    lists = {(leaf.structure, leaf.field) for leaf in leaves if leaf.is_list}
    for number, structure in enumerate(request.structures):
        if structure.fields:
            builder = schema.structure(structure.name)
            for place, (name, description, choices) in enumerate(structure.fields):
                kind = "list" if (number, place) in lists else "str"
                builder.field(name, dtype=kind, choices=list(choices) or None, description=description or None)
    if labels:
        schema.entities({label.name: _told(label) for label in labels})
    if request.relations:
        schema.relations({each.name: _told(each) for each in request.relations})
    for task in request.tasks:
        described = {label.name: label.description for label in task.labels}
        names = described if any(described.values()) else list(described)
        threshold = {} if task.threshold is None else {"cls_threshold": task.threshold}
        schema.classification(task.name, names, multi_label=task.multi_label, **threshold)
    return schema


def _told(label: Label) -> dict[str, Any]:
    told = {"description": label.description, "threshold": label.threshold}
    return {key: value for key, value in told.items() if value not in ("", None)}


def _leaves(record: Record) -> Iterator[Leaf]:
    for _, each in record.properties:
        yield from [each] if isinstance(each, Leaf) else _leaves(each)


def _entities(found: Mapping[str, Any], labels: Sequence[Label]) -> Iterator[Place]:
    of_labels = found.get(ENTITIES) or {}
    for number, label in enumerate(labels):
        for span in of_labels.get(label.name) or ():
            yield 0, 0, number, span["start"], span["end"], span["confidence"]


def _structures(found: Mapping[str, Any], request: ExtractionRequest) -> Iterator[Place]:
    structures = [each for each in request.structures if each.fields]
    for task, structure in enumerate(structures, 1):
        for instance, values in enumerate(found.get(structure.name) or ()):
            for number, field in enumerate(structure.fields):
                given = values.get(field.name) or []
                for value in given if isinstance(given, list) else [given]:
                    if field.choices:
                        choice = [each.lower() for each in field.choices].index(value["text"].lower())
                        yield task, instance, number, choice, CHOICE, value["confidence"]
                    else:
                        yield task, instance, number, value["start"], value["end"], value["confidence"]


def _relations(found: Mapping[str, Any], request: ExtractionRequest) -> Iterator[Place]:
    first = 1 + sum(bool(each.fields) for each in request.structures)
    of_names = found.get(RELATIONS) or {}
    for number, label in enumerate(request.relations):
        name = f"{label.name}: {label.description}" if label.description else label.name
        for instance, pair in enumerate(of_names.get(name) or of_names.get(label.name) or ()):
            for field, side in enumerate(("head", "tail")):
                span = pair[side]
                yield first + number, instance, field, span["start"], span["end"], span["confidence"]


def _class_scores(found: Mapping[str, Any], request: ExtractionRequest) -> Floats:
    """Return the scores of all classes: of those that the library does not return, less than any threshold."""
    scores: list[float] = []
    for task in request.tasks:
        given = found.get(task.name) or []
        chosen = {each["label"]: each["confidence"] for each in (given if isinstance(given, list) else [given])}
        scores += [chosen.get(label.name, -1.0) for label in task.labels]
    return np.array(scores, np.float32)


def _words(text: str, lower: bool = True) -> Iterator[tuple[str, int, int]]:
    """Yield words as the library's own splitter does, in linear time."""
    for start, end in word_spans(text):
        word = text[start:end]
        yield (word.lower() if lower else word), start, end


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> Gliner2LibraryAdapter:
    """Load the model; raise LoadError if the library is not installed, or cannot read the directory."""
    return Gliner2LibraryAdapter(loaded_by("gliner2", PACKAGES, lambda: _load(directory), spec, directory).eval())


def _load(directory: Path) -> Any:
    from gliner2 import AutoExtractor

    model = AutoExtractor.from_pretrained(str(directory))
    model.processor.word_splitter = _words
    return model
