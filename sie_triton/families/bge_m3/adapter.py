"""BAAI/bge-m3 and its fine-tunes: dense, sparse and late interaction from the same token states.

M3-Embedding (Chen et al., 2024). Queries and documents are treated the same.
"""

from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.bge_m3 import BgeM3Files, read_linear
from sie_triton.contract import Batch, Rows
from sie_triton.contract.tensors import (
    DENSE,
    INPUT_IDS,
    MULTIVECTOR,
    MULTIVECTOR_LENGTHS,
    SPARSE_INDICES,
    SPARSE_LENGTHS,
    SPARSE_VALUES,
)
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import Encoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.pooling import pool
from sie_triton.families.base import Adapter
from sie_triton.families.bge_m3 import BgeM3Options
from sie_triton.families.sentence_transformer import log_normalize
from sie_triton.families.token_batch import prompt_tokens, tokens


class BgeM3Adapter(Adapter):
    """BGE-M3 adapter, with a head for each output.

    `layers` are by output: the dense layer takes an item's vector, the others take the state of a token.
    """

    encoder: Encoder

    def __init__(
        self, encoder: Encoder, layers: torch.nn.ModuleDict, files: BgeM3Files, pooling: tuple[str, ...]
    ) -> None:
        vocabulary = encoder.vocab_size
        super().__init__(encoder, limits={INPUT_IDS.name: vocabulary - 1}, dims={"sparse": vocabulary})
        self.weights_bytes += num_bytes(layers)
        self._layers = layers
        self._pooling = pooling
        self._special_ids = files.special_ids
        self._heads = {"dense": self._dense, "sparse": self._sparse, "multivector": self._multivector}

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        hidden = self.encoder.hidden_states(*tokens(batch))
        rows: Rows = {}
        for output in batch.outputs or self._heads:
            rows |= self._heads[output](hidden, batch)
        return rows

    def _dense(self, hidden: torch.Tensor, batch: Batch) -> Rows:
        pooled = pool(hidden, tokens(batch)[1], prompt_tokens(batch), self._pooling)
        return {DENSE.name: self._layers["dense"](pooled.float()).cpu().numpy()}

    def _sparse(self, hidden: torch.Tensor, batch: Batch) -> Rows:
        """Return, for each item, the largest weight of each token id."""
        input_ids, lengths = tokens(batch)
        weights = self._layers["sparse"](hidden.float())[:, 0].cpu().numpy()
        items = np.repeat(np.arange(len(lengths)), lengths)
        kept = (weights > 0) & ~np.isin(input_ids, self._special_ids)
        entries, places = np.unique(items[kept] * self.encoder.vocab_size + input_ids[kept], return_inverse=True)
        values = np.zeros(len(entries), np.float32)
        np.maximum.at(values, places, weights[kept])
        items, indices = np.divmod(entries, self.encoder.vocab_size)
        return {
            SPARSE_INDICES.name: indices.astype(np.int32),
            SPARSE_VALUES.name: values,
            SPARSE_LENGTHS.name: np.bincount(items, minlength=len(lengths)).astype(np.int32),
        }

    def _multivector(self, hidden: torch.Tensor, batch: Batch) -> Rows:
        """Return a vector for each token except the first of an item."""
        _, lengths = tokens(batch)
        kept = np.ones(len(hidden), np.bool_)
        kept[np.cumsum(lengths) - lengths] = False
        vectors = self._layers["multivector"](hidden[torch.from_numpy(kept).to(hidden.device)].float())
        return {
            MULTIVECTOR.name: torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy(),
            MULTIVECTOR_LENGTHS.name: lengths - 1,
        }


def load(directory: Path, engine: TorchEngine, options: BgeM3Options) -> BgeM3Adapter:
    """Load a directory with the layers of all outputs; raise LoadError saying what in it cannot be used."""
    files = BgeM3Files.read(directory)
    layers = torch.nn.ModuleDict(
        {
            "dense": dense_layers(files.dense.dense),
            "sparse": read_linear(files.sparse_linear, files.hidden_size, 1),
            "multivector": read_linear(files.colbert_linear, files.hidden_size),
        }
    )
    encoder = engine.encoder(engine.load(files.text.transformer))
    engine.settle(encoder)
    log_normalize(engine.spec.profiles, files.dense)
    return BgeM3Adapter(encoder, layers.eval().to(engine.device), files, options.modes(files.dense))
