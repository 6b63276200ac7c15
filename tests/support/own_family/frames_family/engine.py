"""An engine of plain numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.files import first_line
from sie_triton.engines import Encoder, Engine
from sie_triton.errors import LoadError

Floats = npt.NDArray[np.float32]


class NumpyEncoder(Encoder):
    """`matrix`: float32 [width, bands]."""

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix
        self.weights_bytes = matrix.nbytes

    def forward(self, frames: Floats) -> Floats:
        """Return the spectrum [frames, bands], 0 or more."""
        return np.maximum(frames @ self._matrix, 0)


class NumpyEngine(Engine):
    name = "numpy"

    def encoder(self, directory: Path) -> NumpyEncoder:
        """Return the encoder of frames.npz; LoadError if the file cannot be read."""
        path = directory / "frames.npz"
        try:
            with np.load(path) as file:
                matrix: Any = file["matrix"].astype(np.float32)
        except (OSError, ValueError, KeyError) as exc:
            raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
        return NumpyEncoder(matrix)
