"""extract: find entities, relations, classes and structures in items, by label."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sie_triton.contract.arrays import Array, Ints
from sie_triton.contract.findings import Findings
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.model import Computed, Model, Part, Rows
from sie_triton.contract.names import enumerated
from sie_triton.contract.parameters import Parameter, encodable, parsed_json
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import (
    ENTITIES,
    EXTRACTION,
    FOUND,
    FOUND_LENGTHS,
    ITEMS,
    LABELS,
    NUM_PIECES,
    TEXT,
    Tensor,
)
from sie_triton.contract.verb import Answering, Options, Verb, common_parameters, item_tensors, items_of
from sie_triton.errors import InputError

MAX_LABELS = 4096

# Bounds the response, which repeats the label of each finding.
MAX_LABEL = 1000  # characters


LABEL_PARAMETERS = (
    Parameter(
        "label_thresholds",
        str,
        max_characters=LIMITS.max_json_characters,
        for_prompt=True,
        doc="JSON object: label → threshold of its own",
    ),
    Parameter(
        "label_descriptions",
        str,
        max_characters=LIMITS.max_json_characters,
        for_prompt=True,
        doc="JSON object: label → text that the model reads instead",
    ),
)


class Label(NamedTuple):
    """A label to look for. `threshold` is its minimum score, None: that of the request."""

    name: str
    description: str = ""
    threshold: float | None = None

    @property
    def read(self) -> str:
        return self.description or self.name


class Known(NamedTuple):
    """An entity that the client already knows: its place in the text."""

    start: int
    end: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Annotated:
    """A text and its known entities."""

    text: str
    known: tuple[Known, ...]

    def __len__(self) -> int:
        return len(self.text)


class Extract(Verb):
    """Finds entities, relations, classes and structures. Offsets count Unicode code points of the text as sent."""

    name = "extract"

    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        text, known = "Ada Lovelace lived in London.", json.dumps([{"start": 0, "end": 12}, {"start": 22, "end": 28}])
        asked = {TEXT.name: [text]}
        if model.extraction.labels:
            asked[LABELS.name] = ["lived in"] if model.extraction.entities else ["person", "city"]
        return asked | ({ENTITIES.name: [known]} if model.extraction.entities else {})

    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        return (*item_tensors(kinds), LABELS, ENTITIES)

    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        return (*common_parameters(model), *(LABEL_PARAMETERS if model.extraction.labels else ()))

    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        return (EXTRACTION,)

    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        return (FOUND, FOUND_LENGTHS, NUM_PIECES)

    def passed_on(self, model: Model) -> tuple[Tensor, ...]:
        return (*(ITEMS[kind] for kind in model.spec.inputs if kind == TEXT.name), LABELS)

    def computed(self, model: Model) -> tuple[Tensor, ...]:
        return model.extraction.computed

    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        name, items = items_of(sent, model.spec.inputs)
        labels = read_labels(sent[LABELS.name], given, model)
        if model.extraction.entities:
            known = read_entities(items, sent[ENTITIES.name])
            items = [Annotated(text, of_text) for text, of_text in zip(items, known, strict=True)]
        elif sent[ENTITIES.name]:
            raise InputError.at("entities", "this model does not read entities; leave it out")
        instruction = self.instruction(given, profile)
        options = {**profile.parameters, **given}
        return [Part(name, items, profile, None, instruction, labels=labels, options=options)]

    def needed(self, model: Model, options: Options) -> frozenset[str]:
        return frozenset(tensor.name for tensor in model.extraction.computed)

    def sent(self, model: Model, options: Options) -> tuple[Tensor, ...]:
        return self.forwarded(model)

    def collect(self, model: Model, options: Options, rows: Sequence[Rows], num_pieces: Ints) -> Rows:
        ends = np.cumsum(num_pieces).tolist()
        found = [
            _findings(model, rows[end - count : end], options, item).to_json()
            for item, (end, count) in enumerate(zip(ends, num_pieces.tolist(), strict=True))
        ]
        return {
            FOUND.name: np.frombuffer(b"".join(found), np.uint8),
            FOUND_LENGTHS.name: np.array([len(each) for each in found], np.int32),
            NUM_PIECES.name: num_pieces,
        }

    def token_count(self, lengths: Ints, num_items: int, tensors: Rows) -> Ints:
        num_pieces = tensors[NUM_PIECES.name]
        counts: Ints = np.add.reduceat(lengths, np.cumsum(num_pieces) - num_pieces, dtype=np.int32)
        return counts

    def answering(self, model: Model) -> Answering:
        return Extractions()


class Extractions(Answering):
    """Postprocessing of extract: adds the words of the text and the names of the labels to the findings."""

    def outputs(self, request: Computed) -> Rows:
        tensors = request.tensors
        labels, texts = distinct(_texts(tensors.get(LABELS.name))), _texts(tensors.get(TEXT.name))
        found, ends = tensors[FOUND.name].tobytes(), np.cumsum(tensors[FOUND_LENGTHS.name]).tolist()
        texts = texts or [""] * len(ends)  # without texts, no finding refers to a place in one
        if len(texts) != len(ends):
            raise InputError.at(TEXT.name, f"has {len(texts)} elements; there are {len(ends)} items")
        told = [
            _response(found[start:end], text, labels)
            for start, end, text in zip([0, *ends[:-1]], ends, texts, strict=True)
        ]
        answers = [json.dumps(each, ensure_ascii=False).encode() for each in told]
        return {EXTRACTION.name: np.array(answers, np.object_)}


def _response(found: bytes, text: str, labels: Sequence[str]) -> dict[str, Any]:
    """Return the findings of one item as clients get them; InputError if inference has not written them."""
    try:
        return Findings.from_json(found).to_response(text, labels)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise InputError.at(FOUND.name, f"must be as the previous step writes it ({type(exc).__name__})") from exc


def _findings(model: Model, rows: Sequence[Rows], options: Options, item: int) -> Findings:
    try:
        found = model.extraction.findings(rows, options)
    except InputError as exc:
        raise InputError.at(f"items[{item}]", str(exc)) from exc
    most = LIMITS.max_findings
    if found.count > most:
        given = f"item {item} has {found.count} findings, and at most {most} can be returned"
        raise InputError.at("parameter threshold", f"{given}; raise the threshold")
    return found


def distinct(labels: Sequence[str]) -> list[str]:
    """Return each label once, in order of first occurrence."""
    return list(dict.fromkeys(labels))


def read_labels(sent: Sequence[str], given: Options, model: Model) -> tuple[Label, ...]:
    """Return the labels of a request, each once.

    Raise InputError if the model requires labels and there are none, if it does not read any, or if one is not allowed.
    """
    wanted = model.extraction.labels
    if not sent and wanted == "required":
        raise InputError.at("labels", f"is empty; send the labels that {model.spec.model} must look for")
    if sent and not wanted:
        raise InputError.at("labels", "this model has labels of its own; leave it out")
    names = distinct(sent)
    if len(names) > MAX_LABELS:
        raise InputError.at("labels", f"has {len(names)} elements; send at most {MAX_LABELS}")
    for i, name in enumerate(sent):
        if not name.strip():
            raise InputError.at(f"labels[{i}]", "is empty; send at least one word")
        if len(name) > MAX_LABEL:
            raise InputError.at(f"labels[{i}]", f"has {len(name)} characters; send at most {MAX_LABEL}")
    thresholds = _by_label("label_thresholds", given, names, (int, float), "a number from 0 to 1")
    for name, value in thresholds.items():
        if not 0 <= value <= 1:
            raise InputError.at("parameter label_thresholds", f"{name}: must be a number from 0 to 1 (given {value})")
    descriptions = _by_label("label_descriptions", given, names, (str,), "a string")
    return tuple(Label(name, descriptions.get(name, ""), thresholds.get(name)) for name in names)


def read_entities(items: Sequence[str], given: Sequence[str]) -> list[tuple[Known, ...]]:
    """Return the known entities of each text. InputError names the first invalid element."""
    if len(given) != len(items):
        raise InputError.at(
            "entities", f"has {len(given)} elements; send one JSON list for each of the {len(items)} items"
        )
    return [
        _known_entities(raw, len(text), f"entities[{i}]")
        for i, (raw, text) in enumerate(zip(given, items, strict=True))
    ]


def _known_entities(raw: str, length: int, where: str) -> tuple[Known, ...]:
    found = parsed_json(raw, where)
    if not isinstance(found, list):
        raise InputError.at(where, "must be a JSON list of objects with start and end")
    return tuple(_place(each, length, f"{where}: entity {i}") for i, each in enumerate(found))


def _place(given: Any, length: int, where: str) -> Known:
    start, end = (given.get("start"), given.get("end")) if isinstance(given, dict) else (None, None)
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        raise InputError.at(where, f"needs start and end, whole numbers with 0 ≤ start < end ≤ {length}")
    label = given.get("label", "")
    if not isinstance(label, str):
        raise InputError.at(where, "label must be a string")
    return Known(start, end, encodable(label, f"{where}: label"))


def _by_label(
    name: str, given: Options, labels: Sequence[str], types: tuple[type, ...], allowed: str
) -> Mapping[str, Any]:
    where = f"parameter {name}"
    found = parsed_json(str(given.get(name, "{}")), where)
    if not isinstance(found, dict):
        raise InputError.at(where, "must be a JSON object with labels as keys")
    for label, value in found.items():
        if label not in labels:
            named = enumerated([repr(each[:80]) for each in labels], LIMITS.max_named)
            raise InputError.at(where, f"{label[:80]!r} is not one of the labels: {named}")
        if type(value) not in types:
            raise InputError.at(where, f"{label[:80]!r}: must be {allowed}")
        if isinstance(value, str):
            encodable(value, f"{where}: {label[:80]!r}")
    return found


def _texts(array: Array | None) -> list[str]:
    """Decode an input that preprocess has already validated."""
    return [] if array is None else [raw.decode(errors="replace") for raw in array]
