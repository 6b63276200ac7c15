"""A page and a task → GLM-OCR's input."""

from pathlib import Path

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.glm_ocr import OCR, TASKS, USUAL_NEW_TOKENS, GlmOcr, GlmOcrOptions
from sie_triton.models.families.shared.ocr.tasks import OcrTasks, PatchFiles, TaskProcessor
from sie_triton.models.inputs.patch_resizing import patched_size


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
