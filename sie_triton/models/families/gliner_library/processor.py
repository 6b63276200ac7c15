"""Texts and labels → JSON, for the library. No torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.models.families.gliner_library import ASKED, CHARACTERS_A_TOKEN
from sie_triton.models.inputs.base import Frame, Processor


class LabelFrame(NamedTuple):
    labels: tuple[Label, ...]

    @property
    def size(self) -> int:
        return sum(len(label.read) for label in self.labels)

    def around(self, element: Any) -> tuple[tuple[Label, ...], str]:
        return self.labels, element


class PlainProcessor(Processor):
    def frame(self, part: Part) -> Frame:
        super().frame(part)
        return LabelFrame(tuple(part.labels))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        asked = [
            [text, [label.read for label in labels], [each.threshold for each in labels]] for labels, text in framed
        ]
        written = [json.dumps(each).encode() for each in asked]
        lengths = np.array(list(map(len, written)), np.int32)
        return {
            READ.name: Ragged(1 + lengths // CHARACTERS_A_TOKEN),
            ASKED.name: Ragged(np.frombuffer(b"".join(written), np.uint8), lengths),
        }


def load_processor(spec: ModelSpec, directory: Path) -> PlainProcessor:
    return PlainProcessor()
