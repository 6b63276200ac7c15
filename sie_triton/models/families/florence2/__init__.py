"""Florence-2: captions, text and objects in an image (Xiao et al., 2024).

image → DaViT → patches ┐
task  → its prompt ─────┴→ BART → tokens → text with places → lines, objects, data
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import NESTED, ImagePlan
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.contract import Extraction, Findings, Line, Object, ParameterValue, Rows
from sie_triton.contract.tensors import INPUT_IDS, ORIGINAL_SIZES, PIXELS, READ, Tensor
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.florence2.original_files import BANNED, TOKENS, as_transformers, is_original
from sie_triton.models.families.florence2.tasks import TASKS
from sie_triton.models.families.shared.readers.processor import (
    CERTAIN,
    GENERATED,
    NEW_TOKENS,
    READER_PARAMETERS,
    TaskOptions,
    text_of,
)


@dataclass(frozen=True, slots=True)
class Florence2Files:
    """Files of a Florence-2 model."""

    directory: Path
    plan: ImagePlan
    num_patches: int  # of an image, as many tokens `image_token`
    image_token: int
    positions: int  # maximum number of tokens of encoder and decoder
    banned: frozenset[str]  # phrases that are not grounded
    least_area: float  # share of the image; words on less are dropped
    added_tokens: tuple[str, ...] = ()  # appended to those of the tokenizer
    original: Mapping[str, Any] | None = None  # Microsoft's config.json in the terms of transformers, if it is that

    @classmethod
    def read(cls, directory: Path) -> "Florence2Files":
        config = read_fields(directory / "config.json")
        original = as_transformers(config) if is_original(config) else None
        if original is not None:
            config = Fields(config.where, original)
        vision, text = config.fields("vision_config"), config.fields("text_config")
        text.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        for layers in ("encoder_layers", "decoder_layers"):
            text.integer(layers, 12, least=1, most=LIMITS.max_layers)
        plan = ImagePlan.read(directory, "CLIPImageProcessor")
        asked = read_fields(directory / NESTED, required=False).fields("post_processor_config")
        return cls(
            directory,
            plan,
            _num_patches(vision, plan),
            config.integer("image_token_id", 51289),
            text.integer("max_position_embeddings", 1024, least=2),
            BANNED if original else frozenset(asked.fields("phrase_grounding").texts("banned_grounding_tokens")),
            asked.fields("ocr").number("AREA_THRESHOLD", 0.0),
            TOKENS if original else (),
            original,
        )


def _num_patches(vision: Fields, plan: ImagePlan) -> int:
    """Return the number of patches that the convolutions make of an image, and one more for the image as a whole."""
    sides = list(plan.shape)
    stages = zip(*(_numbers(vision, name, usual) for name, usual in CONVOLUTIONS.items()), strict=True)
    for kernel, stride, padding in stages:
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    most = vision.integer("max_position_embeddings", 50, least=1)
    if not all(1 <= side <= most for side in sides):
        message = f"images of {plan.shape[0]} × {plan.shape[1]} become {sides[0]} × {sides[1]} patches"
        raise vision.corrupt(f"{message}, but its max_position_embeddings is {most}")
    return 1 + sides[0] * sides[1]


CONVOLUTIONS = {"patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2], "patch_padding": [3, 1, 1, 1]}


def _numbers(fields: Fields, name: str, usual: list[int]) -> list[int]:
    values = fields.values.get(name, usual)
    if not isinstance(values, list) or len(values) != 4:
        raise fields.corrupt(f"{name}: must be a list of 4 numbers")
    least = 0 if name == "patch_padding" else 1
    entries = Fields(f"{fields.where}: {name}", {str(i): value for i, value in enumerate(values)})
    return [entries.integer(str(i), least=least, most=LIMITS.max_image_side) for i in range(4)]


TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the answer as `data` under the name of its task, and as lines or objects."""
    (row,) = rows
    name, answer = json.loads(text_of(row))
    found, task = Findings(data={name: answer}), TASKS[name]
    if isinstance(answer, str):
        found.lines = [Line(answer, None, task.label, CERTAIN)] if answer else []
    elif task.kind == "ocr":
        pairs = zip(answer["quad_boxes"], answer["labels"], strict=True)
        found.lines = [Line(words, _around(quad), task.label, CERTAIN) for quad, words in pairs]
    elif "bboxes" in answer:
        labels = answer.get("labels", answer.get("bboxes_labels"))
        pairs = zip(answer["bboxes"], labels, strict=True)
        found.objects = [Object((*box,), label or "object", CERTAIN) for box, label in pairs]
    return found


def _around(quad: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the bounding box of a path of corners."""
    x, y = quad[0::2], quad[1::2]
    return min(x), min(y), max(x), max(y)


class Florence2(Family):
    inputs = ("image",)
    unread_inputs = ("text",)
    extraction = Extraction((GENERATED,), findings, "optional")
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS, TASK, ORIGINAL_SIZES)
    parameters = READER_PARAMETERS
    options = TaskOptions
    generates = True
    reference_adapters = ("florence2:Florence2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory)[0] != "florence2":
            return None
        files = Florence2Files.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: florence2, images of {height} × {width} in {files.num_patches} patches"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return Florence2Files.read(directory).positions
