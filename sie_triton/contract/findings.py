"""What was found in one item: labels and places in its text.

    forward passes → Findings of an item → JSON → postprocess, which has the text and the labels → `extraction`

A place is a start and an end, exclusive, in Unicode code points. A label is a number, into the request's labels, or
where the checkpoint brings them a name.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Label = int | str


class Entity(NamedTuple):
    start: int
    end: int
    label: Label
    score: float


class Relation(NamedTuple):
    """Between two places."""

    head_start: int
    head_end: int
    tail_start: int
    tail_end: int
    label: Label
    score: float


class Class(NamedTuple):
    """Of the whole item."""

    label: Label
    score: float


@dataclass(slots=True)
class Findings:
    """`data` is JSON; in it a Place stands for the words there."""

    entities: list[Entity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    classifications: list[Class] = field(default_factory=list)
    data: Any = None

    def to_json(self) -> bytes:
        return json.dumps([self.entities, self.relations, self.classifications, self.data]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Findings":
        entities, relations, classifications, data = json.loads(text)
        return cls(
            [Entity(*each) for each in entities],
            [Relation(*each) for each in relations],
            [Class(*each) for each in classifications],
            data,
        )

    def told(self, text: str, labels: Sequence[str]) -> dict[str, Any]:
        """As clients get it."""

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
            "objects": [],
            "data": in_words(self.data, text) if self.data is not None else {},
        }


PLACE = "__place__"


def place(start: int, end: int) -> dict[str, list[int]]:
    """In `data`, what stands for the words there."""
    return {PLACE: [start, end]}


def in_words(data: Any, text: str) -> Any:
    """`data` with the words in the places."""
    if isinstance(data, dict):
        if PLACE in data:
            start, end = data[PLACE]
            return text[start:end]
        return {key: in_words(value, text) for key, value in data.items()}
    return [in_words(each, text) for each in data] if isinstance(data, list) else data
