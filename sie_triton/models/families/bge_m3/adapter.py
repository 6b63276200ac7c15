"""BAAI/bge-m3 and its fine-tunes: dense, sparse and late interaction from the same token states.

M3-Embedding (Chen et al., 2024). Queries and documents are treated the same.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from sie_triton.contract import Batch, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
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
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import states_at
from sie_triton.engines.torch.pooling import Pooling
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices, downloaded
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.bge_m3 import BgeM3Files, BgeM3Options, read_linear
from sie_triton.models.families.sentence_transformer import log_normalize
from sie_triton.models.families.shared.token_batch import prompt_tokens, tokens


class BgeM3Adapter(Adapter):
    """BGE-M3 adapter, with a head for each output.

    `layers` are by output: the dense layer takes an item's vector, the others take the state of a token.
    """

    encoder: TorchEncoder

    def __init__(
        self, encoder: TorchEncoder, layers: torch.nn.ModuleDict, files: BgeM3Files, pooling: tuple[str, ...]
    ) -> None:
        vocabulary = encoder.vocab_size
        super().__init__(encoder, limits={INPUT_IDS.name: vocabulary - 1}, dims={"sparse": vocabulary})
        self.weights_bytes += num_bytes(layers)
        self._layers = layers
        self._pooling = pooling
        self._special_ids = files.special_ids

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        outputs = batch.outputs or {"dense", "sparse", "multivector"}
        pool = Pooling(lengths, prompt_tokens(batch), self._pooling)
        kept = Indices(behind_the_first(lengths)) if "multivector" in outputs else Indices()
        hidden = self.encoder.hidden_states(input_ids, lengths, extra_indices=[pool.indices, kept])
        made: dict[str, Callable[[], torch.Tensor]] = {
            "dense": lambda: self._layers["dense"](pool(hidden).float()),
            "sparse": lambda: self._layers["sparse"](hidden.float())[:, 0],
            "multivector": lambda: normalize(self._layers["multivector"](states_at(hidden, kept).float()), dim=-1),
        }
        found = dict(zip(outputs, downloaded(*(made[output]() for output in outputs)), strict=True))
        rows: Rows = {}
        if "dense" in found:
            rows[DENSE.name] = found["dense"]
        if "sparse" in found:
            rows |= self._sparse(found["sparse"], batch)
        if "multivector" in found:
            rows |= {MULTIVECTOR.name: found["multivector"], MULTIVECTOR_LENGTHS.name: lengths - 1}
        return rows

    def _sparse(self, weights: npt.NDArray[np.float32], batch: Batch) -> Rows:
        """The largest weight of each token id of an item, of those of all tokens."""
        input_ids, lengths = tokens(batch)
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


def behind_the_first(lengths: Ints) -> npt.NDArray[np.int64]:
    """All tokens but the first of each item.

    >>> behind_the_first(np.array([3, 1, 2], np.int32)).tolist()
    [1, 2, 5]
    """
    return np.flatnonzero(placed(lengths)[1])


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> BgeM3Adapter:
    options = BgeM3Options.of(spec)
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
