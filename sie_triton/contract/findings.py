"""Findings of one item: labels, and their places in its text or image.

    forward passes → Findings of an item → JSON → postprocess, which has the text and the labels → `extraction`

A place in a text is a start and an end, exclusive, in Unicode code points. A place in an image is a box: left, top,
right and bottom, in pixels of the upright image. A label is an index into the request's labels, or a name if the
checkpoint has labels of its own.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sie_triton.contract.limits import LIMITS

Label = int | str
Box = tuple[float, float, float, float]


class Entity(NamedTuple):
    start: int
    end: int
    label: Label
    score: float


class Relation(NamedTuple):
    """A relation between two places, from head to tail."""

    head_start: int
    head_end: int
    tail_start: int
    tail_end: int
    label: Label
    score: float


class Class(NamedTuple):
    """A class of the whole item."""

    label: Label
    score: float


class Object(NamedTuple):
    """An object in an image."""

    box: Box
    label: Label
    score: float


class Line(NamedTuple):
    """Words that the model has read in an image. `box` None: their place is unknown."""

    text: str
    box: Box | None
    label: Label
    score: float


@dataclass(slots=True)
class Findings:
    """Findings of one item. `data` is JSON in which a `place` stands for the words of the text."""

    entities: list[Entity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    classifications: list[Class] = field(default_factory=list)
    data: Any = None
    objects: list[Object] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def count(self) -> int:
        of_text = len(self.entities) + len(self.relations) + len(self.classifications)
        return of_text + len(self.objects) + len(self.lines)

    def to_json(self) -> bytes:
        fields = [self.entities, self.relations, self.classifications, self.data, self.objects, self.lines]
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Findings":
        entities, relations, classifications, data, objects, lines = json.loads(text)
        return cls(
            [Entity(*each) for each in entities],
            [Relation(*each) for each in relations],
            [Class(*each) for each in classifications],
            data,
            [Object(*each) for each in objects],
            [Line(*each) for each in lines],
        )

    def to_response(self, text: str, labels: Sequence[str]) -> dict[str, Any]:
        """Return the findings as clients get them. Lines become entities without a place in a text."""

        def name(label: Label) -> str:
            return labels[label] if isinstance(label, int) else label

        return {
            "entities": [
                {
                    "text": text[each.start : each.end],
                    "label": name(each.label),
                    "score": each.score,
                    "start": each.start,
                    "end": each.end,
                }
                for each in self.entities
            ]
            + [
                {"text": each.text, "label": name(each.label), "score": each.score, "bbox": each.box}
                for each in self.lines
            ],
            "relations": [
                {
                    "head": text[each.head_start : each.head_end],
                    "tail": text[each.tail_start : each.tail_end],
                    "relation": name(each.label),
                    "score": each.score,
                    "head_start": each.head_start,
                    "head_end": each.head_end,
                    "tail_start": each.tail_start,
                    "tail_end": each.tail_end,
                }
                for each in self.relations
            ],
            "classifications": [{"label": name(each.label), "score": each.score} for each in self.classifications],
            "objects": [{"label": name(each.label), "score": each.score, "bbox": each.box} for each in self.objects],
            "data": with_words(self.data, text) if self.data is not None else {},
        }


PLACE = "__place__"

# Longer numbers, in characters, stay strings.
GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
PLAIN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def place(start: int, end: int, kind: Literal["", "number", "integer"] = "") -> dict[str, list[Any]]:
    """Return the placeholder in `data` for the words at a place. `kind`: of the number to convert them to."""
    return {PLACE: [start, end, kind]}


def with_words(data: Any, text: str) -> Any:
    """Return `data` with each place replaced by its words in `text`."""
    if isinstance(data, dict):
        if PLACE in data:
            start, end, kind = data[PLACE]
            return number_in(text[start:end], kind) if kind else text[start:end]
        return {key: with_words(value, text) for key, value in data.items()}
    return [with_words(each, text) for each in data] if isinstance(data, list) else data


def number_in(words: str, kind: str) -> int | float | str:
    """Convert words to a number of this kind; return the words unchanged if they are not one.

    >>> number_in("1,234.50", "number"), number_in("-12", "integer"), number_in("3.5", "integer")
    (1234.5, -12, '3.5')
    >>> number_in("about 5", "number"), number_in("12 %", "number"), number_in("1e999", "number")
    ('about 5', '12 %', '1e999')
    """
    plain = words.replace(",", "") if GROUPED.fullmatch(words) else words
    if not PLAIN.fullmatch(plain) or len(plain) > LIMITS.max_number_characters:
        return words
    found = float(plain)
    if math.isinf(found):
        return words
    if plain.lstrip("+-").isdigit():
        return int(plain)
    if kind == "integer":
        return int(found) if found.is_integer() else words
    return found
