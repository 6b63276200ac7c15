"""A page and a task → GLM-OCR's input."""

from pathlib import Path

from sie_triton.families.glm_ocr import OCR, TASKS, USUAL_NEW_TOKENS, GlmOcrOptions, images
from sie_triton.families.shared.ocr.tasks import TaskProcessor, Tasks
from sie_triton.spec import ModelSpec


def load_processor(spec: ModelSpec, directory: Path) -> TaskProcessor:
    """Load the processor; raise LoadError saying what is wrong with its files."""
    options = GlmOcrOptions.of(spec)
    tasks = Tasks(TASKS, options.default_task or OCR, options.user_text)
    return TaskProcessor(images(directory), tasks, USUAL_NEW_TOKENS, spec)
