"""GLM-OCR: text, tables and formulas of a page as markdown, or the answer to an instruction.

page → at about its own size → patches → CogViT → a state for four patches, within the prompt → GLM → markdown
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.shared.ocr import OcrFamily
from sie_triton.models.families.shared.ocr.tasks import OcrTasks, PatchFiles, TaskProcessor
from sie_triton.models.families.shared.readers.processor import READER_PARAMETERS, TaskOptions
from sie_triton.models.inputs.patch_resizing import patched_size

USUAL_NEW_TOKENS = 8192

OCR = "ocr"
TASKS = {OCR: "Text Recognition:", "table": "Table Recognition:", "formula": "Formula Recognition:"}


@dataclass(frozen=True)
class GlmOcrOptions(TaskOptions):
    """Options of GLM-OCR. `user_text` replaces the prompt of the default task."""

    user_text: str = ""


class GlmOcr(OcrFamily):
    model_types = ("glm_ocr",)
    parameters = READER_PARAMETERS
    options = GlmOcrOptions
    reference_adapters = ("glm_ocr:GlmOcrAdapter",)


def load_processor(spec: ModelSpec, directory: Path) -> TaskProcessor:
    options = GlmOcrOptions.of(spec)
    tasks = OcrTasks(TASKS, options.default_task or OCR, options.user_text)
    return TaskProcessor(images(directory), tasks, USUAL_NEW_TOKENS, spec)


def page_size(height: int, width: int, plan: PatchPlan) -> tuple[int, int]:
    """Return height and width after resizing, enlarged until both sides have a block of patches.

    `patched_size` counts each pixel once for each frame.
    """
    if min(height, width) < plan.factor:
        grown = max(plan.factor / height, plan.factor / width)
        height, width = int(height * grown), int(width * grown)
    return patched_size(height, width, plan, plan.frames)


def images(directory: Path) -> PatchFiles:
    """Read the preprocessing; raise LoadError naming the file that cannot be used."""
    files = GlmOcr.read(directory)
    return PatchFiles(files, PatchPlan.read(directory, files.vision, "Glm46VImageProcessor"), page_size)
