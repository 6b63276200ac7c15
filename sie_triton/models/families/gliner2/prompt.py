"""A request → the prompt that gliner2 writes before the text. Pure.

( [P] structure ( [C] field … ) ) [SEP_STRUCT] ( [P] entities ( [E] label … ) ) … [SEP_TEXT]
( structure: field ( choice | choice ) , … ) word word …
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sie_triton.contract import Label
from sie_triton.models.families.gliner2.output_schema import Structure
from sie_triton.models.families.gliner2.request import ExtractionRequest
from sie_triton.models.families.gliner2.tensors import ANY_CLASSES, ENTITIES, FIELD, INSTANCES, ONE_CLASS

ASKED, DESCRIPTION, SEPARATOR, TEXT = "[P]", "[DESCRIPTION]", "[SEP_STRUCT]", "[SEP_TEXT]"
OF_STRUCTURE, OF_ENTITIES, OF_RELATION, OF_TASK = "[C]", "[E]", "[R]", "[L]"
MARKERS = (ASKED, DESCRIPTION, SEPARATOR, TEXT, OF_STRUCTURE, OF_ENTITIES, OF_RELATION, OF_TASK)


@dataclass(slots=True)
class PromptPart:
    """A prompt."""

    written: list[str] = field(default_factory=list)  # its words, tokenized one by one
    labels: list[int] = field(default_factory=list)  # indices of the words that stand for a label
    roles: list[int] = field(default_factory=list)  # by label
    thresholds: list[float] = field(default_factory=list)  # by label
    choices: list[int] = field(default_factory=list)  # indices of the words that stand for a choice
    choice_labels: list[int] = field(default_factory=list)  # label of each choice

    def ask(self, role: int, marker: str, name: str, fields: Sequence[Label], threshold: float | None = None) -> None:
        """Add a question; `threshold` is for fields without a threshold of their own."""
        if self.written:
            self.written.append(SEPARATOR)
        self.written += ["(", ASKED, name, "("]
        self._label(len(self.written) - 3, role, None)
        for each in fields:
            self.written += [marker, each.name]
            self._label(len(self.written) - 2, FIELD, threshold if each.threshold is None else each.threshold)
        self.written += [")", ")"]

    def _label(self, place: int, role: int, threshold: float | None) -> None:
        self.labels.append(place)
        self.roles.append(role)
        self.thresholds.append(math.nan if threshold is None else threshold)


def question_of(request: ExtractionRequest, labels: Sequence[Label]) -> PromptPart:
    """Write structures, entities, relations and classes; the result has no labels if the request is empty."""
    question = PromptPart()
    for structure in request.structures:
        if structure.fields:
            fields = [Label(each.name, each.description) for each in structure.fields]
            question.ask(INSTANCES, OF_STRUCTURE, described(structure.name, fields), fields)
    if labels:
        question.ask(ENTITIES, OF_ENTITIES, described("entities", labels), labels)
    for relation in request.relations:
        name = f"{relation.name}: {relation.description}" if relation.description else relation.name
        question.ask(INSTANCES, OF_RELATION, name, [Label("head"), Label("tail")], relation.threshold)
    for task in request.tasks:
        role = ANY_CLASSES if task.multi_label else ONE_CLASS
        question.ask(role, OF_TASK, described(task.name, task.labels), task.labels)
    if question.roles:
        question.written.append(TEXT)
        _write_choices(question, request.structures)
    return question


def described(name: str, labels: Sequence[Label]) -> str:
    told = (f" {DESCRIPTION} {label.name}: {label.description}" for label in labels if label.description)
    return name + "".join(told)


def _write_choices(question: PromptPart, structures: Sequence[Structure]) -> None:
    start = len(question.written)
    for structure in structures:
        fields = [each for each in structure.fields if each.choices]
        if not fields:
            continue
        question.written += ["(", f"{structure.name}:"]
        for i, each in enumerate(fields):
            parted = [part for choice in each.choices for part in ("|", choice)][1:]
            question.written += [*([","] if i else []), each.name, "(", *parted, ")"]
        question.written.append(")")
    # A choice is read at the first word equal to it, whatever that word stands for; the model was trained so.
    first: dict[str, int] = {}
    for place in range(start, len(question.written)):
        first.setdefault(question.written[place].lower(), place)
    label = 0
    for structure in structures:
        for number, each in enumerate(structure.fields):
            question.choices += [first[choice.lower()] for choice in each.choices]
            question.choice_labels += [label + 1 + number] * len(each.choices)
        label += 1 + len(structure.fields) if structure.fields else 0
