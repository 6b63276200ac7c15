"""BAAI/bge-m3 and its fine-tunes: dense, sparse and late interaction from the same token states.

M3-Embedding (Chen et al., 2024). Queries and documents are treated the same.
"""

import logging
from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.bge_m3 import BgeM3Files, read_linear
from sie_triton.contract import (
    DENSE,
    MULTIVECTOR,
    MULTIVECTOR_LENGTHS,
    SPARSE_INDICES,
    SPARSE_LENGTHS,
    SPARSE_VALUES,
)
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import Encoder, load_encoder, num_bytes
from sie_triton.engines.torch.pooling import pool
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.probe import choose_path
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

log = logging.getLogger(__name__)


class BgeM3Adapter:
    """A head for each output. `layers` by output: of dense on an item's vector, of the others on a token's state."""

    def __init__(self, encoder: Encoder, layers: torch.nn.ModuleDict, files: BgeM3Files, pooling: str | None) -> None:
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.weights_bytes = encoder.weights_bytes + num_bytes(layers)
        self._layers = layers
        self._pooling = (pooling,) if pooling else files.dense.pooling
        self._special_ids = files.special_ids
        self._heads = {"dense": self._dense, "sparse": self._sparse, "multivector": self._multivector}

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Rows:
        hidden = self.encoder.hidden_states(batch.input_ids, batch.lengths)
        rows: Rows = {}
        for output in batch.outputs or self._heads:
            rows |= self._heads[output](hidden, batch)
        return rows

    def _dense(self, hidden: torch.Tensor, batch: PackedBatch) -> Rows:
        pooled = pool(hidden, batch, self._pooling)
        return {DENSE.name: self._layers["dense"](pooled.float()).cpu().numpy()}

    def _sparse(self, hidden: torch.Tensor, batch: PackedBatch) -> Rows:
        """The largest weight of each token id of an item."""
        weights = self._layers["sparse"](hidden.float())[:, 0].cpu().numpy()
        items = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        kept = (weights > 0) & ~np.isin(batch.input_ids, self._special_ids)
        entries, places = np.unique(items[kept] * self.vocab_size + batch.input_ids[kept], return_inverse=True)
        values = np.zeros(len(entries), np.float32)
        np.maximum.at(values, places, weights[kept])
        items, indices = np.divmod(entries, self.vocab_size)
        return {
            SPARSE_INDICES.name: indices.astype(np.int32),
            SPARSE_VALUES.name: values,
            SPARSE_LENGTHS.name: np.bincount(items, minlength=len(batch.lengths)).astype(np.int32),
        }

    def _multivector(self, hidden: torch.Tensor, batch: PackedBatch) -> Rows:
        """A vector for each token but the first of an item."""
        kept = np.ones(len(hidden), np.bool_)
        kept[np.cumsum(batch.lengths) - batch.lengths] = False
        vectors = self._layers["multivector"](hidden[torch.from_numpy(kept).to(hidden.device)].float())
        return {
            MULTIVECTOR.name: torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy(),
            MULTIVECTOR_LENGTHS.name: batch.lengths - 1,
        }


def load(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> BgeM3Adapter:
    """Load a directory with the layers of both further outputs; LoadError says what in it cannot be used."""
    files = BgeM3Files.read(directory)
    layers = torch.nn.ModuleDict(
        {
            "dense": dense_layers(files.dense.dense),
            "sparse": read_linear(files.sparse_linear, files.hidden_size, 1),
            "multivector": read_linear(files.colbert_linear, files.hidden_size),
        }
    )
    dtype = choose_dtype(spec.runtime.precision, device)
    encoder = load_encoder(files.text.transformer, dtype, device, spec.runtime.attention)
    verdict = choose_path(encoder, spec.max_sequence_length, measurements)
    log.info("%s runs %s (%s), attention kernel %s", spec.model, verdict.path, verdict.reason, encoder.kernel)
    return BgeM3Adapter(encoder, layers.eval().to(device), files, spec.pooling)
