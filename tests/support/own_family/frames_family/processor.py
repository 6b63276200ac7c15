"""Texts → frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frames_family import FRAMES, WIDTH
from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.inputs import Frame, Processor
from sie_triton.models.inputs.prompt import prompt_of


class FramesProcessor(Processor):
    """Cuts each text to `max_frames` characters."""

    def __init__(self, max_frames: int) -> None:
        self._max_frames = max_frames

    def frame(self, part: Part) -> Frame:
        return prompt_of({}, "", part)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = [text[: self._max_frames] for text in framed]
        frames = [[ord(c) / 128, c.isupper(), c.isdigit(), c.isspace()] for text in texts for c in text]
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        return {FRAMES.name: Ragged(np.array(frames, np.float32).reshape(-1, WIDTH), lengths)}


def load_processor(spec: ModelSpec, directory: Path) -> FramesProcessor:
    return FramesProcessor(spec.max_sequence_length)
