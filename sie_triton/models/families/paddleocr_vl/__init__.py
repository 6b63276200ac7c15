"""PaddleOCR-VL: text, tables, formulas, charts and seals of a page, by tasks (Cui et al., 2025).

page → at about its own size → patches → SigLIP → a state for four patches, within the prompt → ERNIE → markdown
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import LoadError
from sie_triton.models.families.shared.ocr import OcrFamily
from sie_triton.models.families.shared.ocr.tasks import OcrTasks, PatchFiles, TaskProcessor
from sie_triton.models.families.shared.readers.processor import READER_PARAMETERS, TaskOptions
from sie_triton.models.inputs.patch_resizing import patched_size

USUAL_NEW_TOKENS = 4096

OCR = "ocr"
TASKS = {
    OCR: "OCR:",
    "table": "Table Recognition:",
    "formula": "Formula Recognition:",
    "chart": "Chart Recognition:",
    "spotting": "Spotting:",
    "seal": "Seal Recognition:",
}
NAMES = tuple(TASKS)

# Tasks whose answers contain places and are not markdown.
WITH_PLACES = ("spotting", "seal")

TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)


class PaddleOcrVl(OcrFamily):
    model_types = ("paddleocr_vl",)
    features = (*OcrFamily.features, TASK)
    parameters = READER_PARAMETERS
    options = TaskOptions
    reference_adapters = ("paddleocr_vl:PaddleOCRVLAdapter",)


class PaddleProcessor(TaskProcessor):
    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        numbers = [prompt.number for _, prompt in framed]
        return {**super().encode(framed), TASK.name: Ragged(np.array(numbers, np.int32))}


def load_processor(spec: ModelSpec, directory: Path) -> PaddleProcessor:
    tasks = OcrTasks(TASKS, TaskOptions.of(spec).default_task or OCR)
    return PaddleProcessor(images(directory), tasks, USUAL_NEW_TOKENS, spec)


def page_size(height: int, width: int, plan: PatchPlan) -> tuple[int, int]:
    """Return height and width after resizing, enlarged until both sides have a block of patches."""
    factor = plan.factor
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return patched_size(height, width, plan)


def images(directory: Path) -> PatchFiles:
    """Read the preprocessing; raise LoadError naming the file that cannot be used."""
    files = PaddleOcrVl.read(directory)
    # config.json may have a setting for video, which the tower of this model does not use.
    vision = {name: value for name, value in files.vision.values.items() if name != "temporal_patch_size"}
    plan = PatchPlan.read(directory, Fields(files.vision.where, vision), "PaddleOCRVLImageProcessor")
    if plan.frames != 1:
        message = f"{directory}: temporal_patch_size {plan.frames} of the image processor cannot be served"
        raise LoadError(f"{message}; it must be 1 for this model", "unsupported")
    return PatchFiles(files, plan, page_size)
