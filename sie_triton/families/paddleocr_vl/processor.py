"""A page and a task → PaddleOCR-VL's input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Ragged
from sie_triton.families.paddleocr_vl import OCR, TASK, TASKS, USUAL_NEW_TOKENS, PaddleOcrOptions, images
from sie_triton.families.shared.ocr.tasks import TaskProcessor, Tasks
from sie_triton.spec import ModelSpec


class PaddleProcessor(TaskProcessor):
    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        numbers = [prompt.number for _, prompt in framed]
        return {**super().encode(framed), TASK.name: Ragged(np.array(numbers, np.int32))}


def load_processor(spec: ModelSpec, directory: Path) -> PaddleProcessor:
    """Load the processor; raise LoadError saying what is wrong with its files."""
    tasks = Tasks(TASKS, PaddleOcrOptions.of(spec).default_task or OCR)
    return PaddleProcessor(images(directory), tasks, USUAL_NEW_TOKENS, spec)
