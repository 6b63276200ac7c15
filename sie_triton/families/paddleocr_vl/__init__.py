"""PaddleOCR-VL: text, tables, formulas, charts and seals of a page, by tasks (Cui et al., 2025).

page → at about its own size → patches → SigLIP → a state for four patches, within the prompt → ERNIE → markdown
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import USUAL, PatchPlan
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import LoadError
from sie_triton.families.base import Options
from sie_triton.families.shared.ocr.family import OcrFamily
from sie_triton.families.shared.readers.processor import READER_PARAMETERS

if TYPE_CHECKING:
    from sie_triton.families.shared.ocr.tasks import PatchFiles

MODEL_TYPE = "paddleocr_vl"
LONGEST = 131_072
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

# Defaults of the library's processor.
USUAL_IMAGES = {
    **USUAL,
    "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536},
    "temporal_patch_size": 1,
}

TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)


@dataclass(frozen=True)
class PaddleOcrOptions(Options):
    """Options of PaddleOCR-VL. `default_task` is used if a request names no task; empty is text."""

    default_task: str = ""


class PaddleOcrVl(OcrFamily):
    features = (*OcrFamily.features, TASK)
    parameters = READER_PARAMETERS
    options = PaddleOcrOptions
    reference_adapters = ("paddleocr_vl:PaddleOCRVLAdapter",)

    def recognises(self, directory: Path) -> bool:
        return kind_of(directory)[0] == MODEL_TYPE

    def read(self, directory: Path) -> PageFiles:
        return read(directory)


def read(directory: Path) -> PageFiles:
    return PageFiles.read(directory, (MODEL_TYPE,), LONGEST)


def page_size(height: int, width: int, plan: PatchPlan) -> tuple[int, int]:
    """Return height and width after resizing, enlarged until both sides have a block of patches."""
    from sie_triton.inputs.patch_resizing import patched_size

    factor = plan.factor
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return patched_size(height, width, plan)


def images(directory: Path) -> "PatchFiles":
    """Read the preprocessing; raise LoadError naming the file that cannot be used."""
    from sie_triton.families.shared.ocr.tasks import PatchFiles

    files = read(directory)
    # config.json may have a setting for video, which the tower of this model does not use.
    vision = {name: value for name, value in files.vision.values.items() if name != "temporal_patch_size"}
    plan = PatchPlan.read(directory, Fields(files.vision.where, vision), USUAL_IMAGES)
    if plan.frames != 1:
        message = f"{directory}: temporal_patch_size {plan.frames} of the image processor cannot be served"
        raise LoadError(f"{message}; it must be 1 for this model", "unsupported")
    return PatchFiles(files, plan, page_size)
