"""Donut: documents read without OCR (Kim et al., 2022).

page → resized, padded → Swin transformer ┐
task, question → tokens → decoder ────────┴→ tokens → JSON → data, entities
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.contract import Class, Extraction, Findings, Line, ParameterValue, Rows
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Family, Options, Recognised
from sie_triton.models.families.donut.files import DonutFiles, is_donut
from sie_triton.models.families.shared.readers.processor import GENERATED, NEW_TOKENS, READER_PARAMETERS, text_of

DOCVQA, RVLCDIP = "<s_docvqa>", "<s_rvlcdip>"

# Generated words have no score.
CERTAIN = 1.0


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return an answer, a document's class, or each value with its path in the generated JSON."""
    (row,) = rows
    task, data = json.loads(text_of(row))
    if task == DOCVQA:
        return Findings(data=data, lines=[_line(text, "answer") for text in _values_of(data, "answer")])
    if task == RVLCDIP:
        names = list(_values_of(data, "class"))
        lines = [_line(name, "document_class") for name in names]
        return Findings(data=data, lines=lines, classifications=[Class(name, CERTAIN) for name in names])
    return Findings(data=data, lines=[_line(text, path) for path, text in values(data)])


def values(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value.

    >>> list(values({"menu": [{"nm": "Tea"}, {"nm": "Pie"}], "total": {"price": "5"}}))
    [('menu[0].nm', 'Tea'), ('menu[1].nm', 'Pie'), ('total.price', '5')]
    """
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from values(value, f"{path}.{key}" if path else key)
    else:
        for i, value in enumerate(data):
            yield from values(value, f"{path}[{i}]")


def _values_of(data: Any, key: str) -> Iterator[str]:
    """Yield the texts under `key` that are not empty."""
    for record in data if isinstance(data, list) else [data]:
        yield from (text for _, text in values(record.get(key, "")) if text)


def _line(text: str, label: str) -> Line:
    return Line(text, None, label, CERTAIN)


@dataclass(frozen=True)
class DonutOptions(Options):
    """Options of Donut.

    `default_task` is used if a request names no task; empty is the task that the model was trained for.
    """

    default_task: str = ""


class Donut(Family):
    inputs = ("image",)
    extraction = Extraction((GENERATED,), findings)
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS)
    parameters = READER_PARAMETERS
    options = DonutOptions
    generates = True
    reference_adapters = ("donut:DonutAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_donut(directory):
            return None
        files = DonutFiles.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: donut, pages of {height} × {width}, answers of up to {files.positions} tokens"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return DonutFiles.read(directory).positions
