"""Frames to their states, and the mean of those."""

from pathlib import Path

import array_api_strict as xp
import numpy as np
import numpy.typing as npt

from arrays_family import FRAMES, NUMPY_VERSION
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE, MULTIVECTOR, MULTIVECTOR_LENGTHS
from sie_triton.engines import Encoder, Engine
from sie_triton.models.families import Adapter


class ArraysAdapter(Adapter):
    def __init__(self, matrix: npt.NDArray[np.float32]) -> None:
        super().__init__(Encoder())
        self._matrix = xp.asarray(matrix)
        self._version = [int(part) for part in np.__version__.split(".")[:2]]

    def forward(self, batch: Batch) -> Rows:
        frames, lengths = batch.features[FRAMES.name]
        assert lengths is not None
        states = np.from_dlpack(xp.matmul(xp.asarray(frames), self._matrix))
        items = np.split(states, np.cumsum(lengths)[:-1])
        return {
            DENSE.name: np.stack([item.mean(0) for item in items]),
            MULTIVECTOR.name: states,
            MULTIVECTOR_LENGTHS.name: lengths,
            NUMPY_VERSION.name: np.array([self._version] * len(items), np.int32),
        }


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> ArraysAdapter:
    return ArraysAdapter(np.load(directory / "matrix.npy"))
