"""Donut: documents read without OCR (Kim et al., 2022).

page → resized, padded → Swin transformer ┐
task, question → tokens → decoder ────────┴→ tokens → JSON → data, entities
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.checkpoints.resizing import EXACT, Resizing
from sie_triton.contract import Class, Extraction, Findings, Line, ParameterValue, Rows
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.readers.processor import (
    CERTAIN,
    GENERATED,
    NEW_TOKENS,
    READER_PARAMETERS,
    TaskOptions,
    text_of,
)

# Task tokens of pretraining.
PRETRAINING = ("<s_iitcdip>", "<s_synthdog>")

START = re.compile(r"<s_([^<>]+)>")


@dataclass(frozen=True, slots=True)
class DonutFiles:
    """Files of a Donut model."""

    directory: Path
    plan: ImagePlan
    is_aligned: bool  # pages are first rotated to the orientation of `plan.shape`
    num_patches: int  # of each page
    positions: int  # maximum number of tokens of the decoder

    @classmethod
    def read(cls, directory: Path) -> "DonutFiles":
        config = read_fields(directory / "config.json")
        encoder, decoder = config.fields("encoder"), config.fields("decoder")
        decoder.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        decoder.integer("decoder_layers", 4, least=1, most=LIMITS.max_layers)
        depths = encoder.values.get("depths", [2, 2, 6, 2])
        if not isinstance(depths, list) or not 1 <= len(depths) <= 8:
            raise encoder.corrupt("depths: must be a list of 1 to 8 numbers")
        plan, is_aligned = page_plan(directory)
        stride = encoder.integer("patch_size", 4, least=1, most=LIMITS.max_image_side) * 2 ** (len(depths) - 1)
        height, width = plan.shape
        return cls(
            directory,
            plan,
            is_aligned,
            -(-height // stride) * -(-width // stride),
            decoder.integer("max_position_embeddings", 1024, least=2),
        )


def is_donut(directory: Path) -> bool:
    if kind_of(directory)[0] != "vision-encoder-decoder":
        return False
    encoder = read_fields(directory / "config.json").values.get("encoder")
    return isinstance(encoder, dict) and encoder.get("model_type") == "donut-swin"


def tasks_of(tokens: Iterable[str]) -> tuple[str, ...]:
    """Return the added tokens that begin an answer.

    The others open a field, and each of them has a closing token.

    >>> tasks_of(["<s_docvqa>", "<s_answer>", "</s_answer>", "<yes/>"])
    ('<s_docvqa>',)
    """
    known = set(tokens)
    found = [token for token in known if (name := START.fullmatch(token)) and f"</s_{name[1]}>" not in known]
    return tuple(sorted(found))


def page_plan(directory: Path) -> tuple[ImagePlan, bool]:
    """Read the preprocessing, and whether pages are rotated first; raise LoadError if it cannot be served."""
    fields = image_fields(directory, "DonutImageProcessor", ("do_resize", "do_thumbnail", "do_pad"))
    if fields.flag("do_center_crop", False):
        raise fields.unserved("do_center_crop true cannot be served")
    if resample(fields) == 0:
        message = "resample 0 cannot be served: the library shrinks with another filter then"
        raise fields.unserved(f"{message}; supported are 1 to 5")
    size = fields.values["size"]
    # In older files, `size` is a list of width and height.
    turned = Fields(fields.where, {**fields.values, "size": size[::-1] if isinstance(size, list) else size})
    plan = ImagePlan(Resizing.read(turned, (EXACT,)), resample(fields), None, **scaling(fields))
    return plan, fields.flag("do_align_long_axis", False)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return an answer, a document's class, or each value with its path in the generated JSON."""
    (row,) = rows
    task, data = json.loads(text_of(row))
    if task == "<s_docvqa>":
        return Findings(data=data, lines=[_line(text, "answer") for text in _values_of(data, "answer")])
    if task == "<s_rvlcdip>":
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


class Donut(Family):
    inputs = ("image",)
    extraction = Extraction((GENERATED,), findings)
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS)
    parameters = READER_PARAMETERS
    options = TaskOptions
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
