"""A transformers audio model as a function of spectrograms. The windows of all sounds are batched."""

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.mel import MelPlan
from sie_triton.engines.torch.tower import Tower

# Maximum number of windows in a batch: each takes about 25 MB, and this many keep any device busy.
WINDOWS = 32

# Spectrograms that a model with fusion reads per window: the whole sound, and three cuts.
FUSED = 4


class SoundTower(Tower):
    """Audio model; `plan` gives the size of a window's spectrogram.

    For a model with fusion, every sound is marked as longer than a window, as the library marks a single sound. For a
    shorter sound, the whole and the cuts are identical.
    """

    def __init__(self, model: PreTrainedModel, plan: MelPlan) -> None:
        super().__init__(model)
        self._plan = plan

    def num_windows(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the number of windows of items, given the size of their spectrograms; ValueError if it is invalid."""
        counts, rest = np.divmod(lengths, self._plan.size)
        if rest.any() or (self._plan.is_fused and not np.isin(counts, (0, 1, FUSED)).all()):
            raise ValueError("spectrograms must be whole")
        return np.minimum(counts, 1) if self._plan.is_fused else counts

    @torch.inference_mode()
    def __call__(self, mel: npt.NDArray[np.float32], lengths: npt.NDArray[np.int32]) -> torch.Tensor:
        """Return [windows, d] for all items; `mel` are their spectrograms end to end, `lengths` numbers of each."""
        counts = (lengths // self._plan.size).tolist()
        shape = (-1, 1, self._plan.num_frames, self._plan.num_bands)
        whole = torch.from_numpy(mel).to(self.device).view(shape)
        if self._plan.is_fused:
            sounds = torch.split(whole.squeeze(1), counts)
            whole = torch.stack([each.expand(FUSED, -1, -1) for each in sounds])
        return torch.cat([self._windows(windows.to(self.dtype)) for windows in torch.split(whole, WINDOWS)])

    def _windows(self, mel: torch.Tensor) -> torch.Tensor:
        is_longer = torch.ones(len(mel), 1, dtype=torch.bool, device=self.device)
        pooled: torch.Tensor = self._model(input_features=mel, is_longer=is_longer).pooler_output
        return pooled
