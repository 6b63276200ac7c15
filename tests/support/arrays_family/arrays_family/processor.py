"""Texts → frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arrays_family import FRAMES
from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.inputs import Processor


class ArraysProcessor(Processor):
    def encode(self, texts: Sequence[Any], *, is_query: bool = False) -> Features:
        frames = [[ord(letter) / 128, letter.isupper()] for text in texts for letter in text]
        lengths = np.array([len(text) for text in texts], np.int32)
        return {FRAMES.name: Ragged(np.array(frames, np.float32).reshape(-1, 2), lengths)}


def load_processor(spec: ModelSpec, directory: Path) -> ArraysProcessor:
    return ArraysProcessor()
