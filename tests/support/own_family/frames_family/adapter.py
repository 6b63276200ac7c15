"""Frames to their spectrum, and its mean."""

from pathlib import Path

import numpy as np

from frames_family import FRAMES, POWER, SPECTRUM, SPECTRUM_LENGTHS, FramesOptions
from frames_family.engine import Floats, NumpyEncoder, NumpyEngine
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE
from sie_triton.models.families import Adapter


class FramesAdapter(Adapter):
    encoder: NumpyEncoder

    def __init__(self, encoder: NumpyEncoder, hann: bool) -> None:
        super().__init__(encoder)
        self._hann = hann

    def forward(self, batch: Batch) -> Rows:
        frames, lengths = batch.features[FRAMES.name]
        assert lengths is not None
        powers = np.array([options.get(POWER.name, 1.0) for options in batch.options], np.float32)
        spectrum = self.encoder.forward(frames) ** np.repeat(powers, lengths)[:, None]
        items = np.split(spectrum, np.cumsum(lengths)[:-1])
        return {
            DENSE.name: np.stack([self._mean(item) for item in items]),
            SPECTRUM.name: spectrum,
            SPECTRUM_LENGTHS.name: lengths,
        }

    def _mean(self, item: Floats) -> Floats:
        """float32 [bands] of [frames, bands]."""
        weights = np.hanning(len(item) + 2)[1:-1] if self._hann else np.ones(len(item))
        return np.average(item, 0, weights).astype(np.float32)


def load_adapter(spec: ModelSpec, directory: Path, engine: NumpyEngine) -> FramesAdapter:
    return FramesAdapter(engine.encoder(directory), FramesOptions.of(spec).window == "hann")
