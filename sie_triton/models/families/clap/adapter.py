"""CLAP's forward pass: texts packed, windows of sounds side by side."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Batch, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LENGTHS, MEL, MEL_LENGTHS, READ
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.sound import FUSED, SoundTower
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.clap import ClapFiles
from sie_triton.models.families.shared.towers.adapter import in_place
from sie_triton.models.inputs.features import copies


class ClapAdapter(Adapter):
    """CLAP adapter.

    `heads` are the pooler of texts and the projections of texts and of sounds. A sound is at most `max_s` seconds long.
    """

    encoder: TorchEncoder

    def __init__(
        self, encoder: TorchEncoder, tower: SoundTower, heads: Sequence[torch.nn.Module], files: ClapFiles, max_s: float
    ) -> None:
        plan = files.plan
        most = 1 if plan.is_fused else -int(-max_s * plan.rate // plan.window)
        limits = {
            INPUT_IDS.name: encoder.vocab_size - 1,
            LENGTHS.name: files.longest_text,
            MEL_LENGTHS.name: plan.size * (FUSED if plan.is_fused else most),
            READ.name: max(files.longest_text, files.window_tokens * most),
        }
        super().__init__(encoder, limits=limits)
        self._tower = tower
        self._pooler, self._text_projection, self._sound_projection = heads
        self.weights_bytes += tower.weights_bytes + sum(map(num_bytes, heads[1:]))
        # A sound costs more than a text.
        window = {
            READ.name: Ragged(np.array([files.window_tokens], np.int32)),
            INPUT_IDS.name: Ragged.of([np.empty(0, np.int32)]),
            MEL.name: Ragged.of([np.zeros(plan.size, np.float32)]),
        }
        self.sample = partial(copies, window, files.window_tokens)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        (ids, lengths), (mel, sizes) = batch.features[INPUT_IDS.name], batch.features[MEL.name]
        assert lengths is not None
        assert sizes is not None
        if ((lengths > 0) == (sizes > 0)).any():
            raise ValueError("an item must be either a text or a sound")
        texts = [self.texts(ids, lengths[lengths > 0])] if len(ids) else []
        sounds = [self.sounds(mel, sizes[sizes > 0])] if len(mel) else []
        return in_place(sizes > 0, texts, sounds)

    def texts(self, input_ids: Ints, lengths: Ints) -> torch.Tensor:
        """Return unit vectors, [texts, dim]."""
        hidden = self.encoder.hidden_states(input_ids, lengths)
        first = hidden[torch.from_numpy(np.cumsum(lengths) - lengths).to(hidden.device)]
        return unit(self._text_projection(self._pooler(first[:, None])))

    def sounds(self, mel: npt.NDArray[np.float32], sizes: Ints) -> torch.Tensor:
        """Return [sounds, dim]: for each sound the mean of the unit vectors of its windows."""
        counts = self._tower.num_windows(sizes).tolist()
        windows = unit(self._sound_projection(self._tower(mel, sizes)))
        return torch.stack([each.mean(0) for each in torch.split(windows, counts)])


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ClapAdapter:
    files = ClapFiles.read(directory)
    model: Any = engine.load(files.directory)
    encoder = engine.encoder(model.text_model)
    engine.settle(encoder, "texts", files.longest_text)
    tower = engine.prepared(SoundTower(model.audio_model, files.plan))
    heads = (model.text_model.pooler, model.text_projection, model.audio_projection)
    return ClapAdapter(encoder, tower, heads, files, spec.runtime.max_audio_s)
