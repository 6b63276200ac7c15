"""Family of texts as frames of two numbers, times a matrix; only loading the weights imports the computing library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sie_triton.contract import ENCODE_OUTPUTS, Features, Output, Ragged
from sie_triton.contract.tensors import Tensor
from sie_triton.engines import Engine
from sie_triton.families import Adapter, Family
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

FRAMES = Tensor("frames", "FP32", (-1, 2), "[characters, 2] code, upper case", "frame_lengths")
NUMPY_VERSION = Tensor("numpy_version", "INT32", (-1, -1), "[n, 2] of the process that computes")


class ArraysProcessor(Processor):
    def encode(self, texts: Sequence[Any], *, is_query: bool = False) -> Features:
        frames = [[ord(letter) / 128, letter.isupper()] for text in texts for letter in text]
        lengths = np.array([len(text) for text in texts], np.int32)
        return {FRAMES.name: Ragged(np.array(frames, np.float32).reshape(-1, 2), lengths)}


class Arrays(Family):
    outputs = (ENCODE_OUTPUTS["dense"], ENCODE_OUTPUTS["multivector"], Output(NUMPY_VERSION.name, (NUMPY_VERSION,)))
    features = (FRAMES,)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    files = ("*.npy",)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        return ArraysProcessor()

    def load(self, spec: ModelSpec, directory: Path, engine: Engine) -> Adapter:
        from arrays_family.adapter import ArraysAdapter

        return ArraysAdapter(np.load(directory / "matrix.npy"))
