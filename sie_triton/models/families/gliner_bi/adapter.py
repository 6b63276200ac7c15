"""The forward pass of GLiNER's bi-encoders: words as in GLiNER, labels once, by a separate encoder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sie_triton.checkpoints.gliner import GlinerFiles
from sie_triton.contract import Batch
from sie_triton.contract.arrays import item_lengths
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.gliner.adapter import GlinerAdapter, Head, head_of, reader_of
from sie_triton.models.families.shared.labels.cache import LabelReader, LabelStates
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES
from sie_triton.models.families.shared.labels.word_reader import WordReader, projection_of

LABELS_ENCODER = "token_rep_layer.labels_encoder.model."


class GlinerBiAdapter(LabelReader, GlinerAdapter):
    """Adapter of bi-encoders. `labels_encoder` and `projection` make the states of labels; `kept` caches them."""

    def __init__(
        self, reader: WordReader, head: Head, labels_encoder: TorchEncoder, projection: nn.Linear | None, longest: int
    ) -> None:
        super().__init__(reader, head)
        self.limits = {
            **self.limits,
            LABEL_IDS.name: labels_encoder.vocab_size - 1,
            LABEL_SIZES.name: longest,
        }
        self.kept = LabelStates()
        self._labels_encoder, self._labels_projection = labels_encoder, projection
        self.weights_bytes += labels_encoder.weights_bytes + (num_bytes(projection) if projection is not None else 0)

    def _labels(self, states: torch.Tensor, batch: Batch) -> list[torch.Tensor]:
        return self.labels_of(batch)

    def _encoded(self, labels: Sequence[bytes]) -> list[torch.Tensor]:
        ids = [np.frombuffer(label, np.int32) for label in labels]
        lengths = item_lengths(ids)
        hidden = self._labels_encoder.hidden_states(np.concatenate(ids), lengths)
        means = torch.stack([each.float().mean(0) for each in torch.split(hidden, lengths.tolist())]).to(hidden.dtype)
        if self._labels_projection is not None:
            means = self._labels_projection(means)
        # Each in memory of its own, so that evicting it frees the memory.
        return [state.clone() for state in self._head.of_labels(means)]


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> GlinerBiAdapter:
    files = GlinerFiles.read(directory)
    weights = Checkpoint(directory, engine.dtype, engine.device)
    reader = reader_of(files, weights, engine)
    encoder = engine.encoder(engine.load_part(files.labels_encoder.values, weights, LABELS_ENCODER))
    engine.settle(encoder, "labels", files.longest_label)
    reader.encoder.loras.model.other_encoders = frozenset(LABELS_ENCODER.split(".")[1:2])
    projection = projection_of(encoder, weights, "token_rep_layer.labels_projection.", files.hidden_size)
    return GlinerBiAdapter(reader, head_of(files, weights), encoder, projection, files.longest_label)
