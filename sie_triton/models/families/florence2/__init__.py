"""Florence-2: captions, text and objects in an image (Xiao et al., 2024).

image → DaViT → patches ┐
task  → its prompt ─────┴→ BART → tokens → text with places → lines, objects, data
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.contract import Extraction, Findings, Line, Object, ParameterValue, Rows
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Family, Options, Recognised
from sie_triton.models.families.florence2.files import Florence2Files, is_florence2
from sie_triton.models.families.florence2.tasks import TASKS
from sie_triton.models.families.shared.readers.processor import GENERATED, NEW_TOKENS, READER_PARAMETERS, text_of

# Generated words have no score.
CERTAIN = 1.0

# The label of objects found by tasks that give no names.
UNNAMED = "object"

TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)
ORIGINAL_SIZES = Tensor("original_sizes", "INT32", (-1, 2), "[n, 2] height and width of the upright image", "", 1)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the answer as `data` under the name of its task, and as lines or objects."""
    (row,) = rows
    name, answer = json.loads(text_of(row))
    found, task = Findings(data={name: answer}), TASKS[name]
    if isinstance(answer, str):
        found.lines = [Line(answer, None, task.label, CERTAIN)] if answer else []
    elif task.kind == "words":
        pairs = zip(answer["quad_boxes"], answer["labels"], strict=True)
        found.lines = [Line(words, _around(quad), task.label, CERTAIN) for quad, words in pairs]
    elif "bboxes" in answer:
        labels = answer.get("labels", answer.get("bboxes_labels"))
        pairs = zip(answer["bboxes"], labels, strict=True)
        found.objects = [Object((*box,), label or UNNAMED, CERTAIN) for box, label in pairs]
    return found


def _around(quad: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the bounding box of a path of corners."""
    x, y = quad[0::2], quad[1::2]
    return min(x), min(y), max(x), max(y)


@dataclass(frozen=True)
class Florence2Options(Options):
    """Options of Florence-2.

    `default_task` is used if a request names no task; empty is text with regions.
    """

    default_task: str = ""


class Florence2(Family):
    inputs = ("image",)
    unread_inputs = ("text",)
    extraction = Extraction((GENERATED,), findings, "optional")
    features = (READ, INPUT_IDS, PIXELS, NEW_TOKENS, TASK, ORIGINAL_SIZES)
    parameters = READER_PARAMETERS
    options = Florence2Options
    generates = True
    reference_adapters = ("florence2:Florence2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_florence2(directory):
            return None
        files = Florence2Files.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: florence2, images of {height} × {width} in {files.num_patches} patches"
        return Recognised(reason, files.positions, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return Florence2Files.read(directory).positions
