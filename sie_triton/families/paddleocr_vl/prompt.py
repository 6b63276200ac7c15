"""A page and a task → PaddleOCR-VL's input."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sie_triton.contract import Features, Ragged
from sie_triton.families.paddleocr_vl import TASK
from sie_triton.families.shared.ocr.tasks import TaskProcessor


class PaddleProcessor(TaskProcessor):
    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        numbers = [prompt.number for _, prompt in framed]
        return {**super().encode(framed), TASK.name: Ragged(np.array(numbers, np.int32))}
