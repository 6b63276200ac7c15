"""The sparse family's forward pass: a weight for each entry of the vocabulary, from a masked-language-model head."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from sie_triton.checkpoints.contents import WEIGHTS
from sie_triton.checkpoints.files import first_line
from sie_triton.checkpoints.sentence_transformers import SparseEncoderFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, SPARSE_INDICES, SPARSE_LENGTHS, SPARSE_VALUES
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import TokenHead
from sie_triton.engines.torch.transfers import Indices, downloaded
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.families.splade import LOOKUP_IDS

# Number of tokens whose logits are computed at once. A row is as wide as the vocabulary, so more would not fit the
# cache.
CHUNK_TOKENS = 256


class SpladeAdapter(Adapter):
    """Sparse adapter. `idf`, float32 [vocabulary], replaces the forward pass of queries; None if there is none.

    The id past the vocabulary stands for the tokens of such a query.
    """

    encoder: TorchEncoder

    def __init__(
        self, encoder: TorchEncoder, head: TokenHead, files: SparseEncoderFiles, idf: torch.Tensor | None
    ) -> None:
        size = encoder.vocab_size
        limits = {INPUT_IDS.name: size - (idf is None), LOOKUP_IDS.name: size - 1}
        super().__init__(encoder, limits=limits, dims={"sparse": size})
        self._head = head
        self._sum = files.pooling == "sum"
        self._log_again = files.activation == "log1p_relu"
        self._idf = idf
        self._most = files.most

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        is_static = input_ids[np.cumsum(lengths) - 1] == self.encoder.vocab_size
        weights = self._mixed(batch, is_static) if is_static.any() else self._pooled(input_ids, lengths)
        if self._most:
            weights = strongest(weights, self._most)
        found = weights.nonzero(as_tuple=True)
        items, entries, values = downloaded(*(each.int() for each in found), weights[found])
        return {
            SPARSE_INDICES.name: entries,
            SPARSE_VALUES.name: values,
            SPARSE_LENGTHS.name: np.bincount(items, minlength=len(lengths)).astype(np.int32),
        }

    def _mixed(self, batch: Batch, is_static: npt.NDArray[np.bool_]) -> torch.Tensor:
        """[items, vocabulary]; those that are static by a look at the table."""
        assert self._idf is not None
        input_ids, lengths = tokens(batch)
        ids, num_ids = batch.features[LOOKUP_IDS.name]
        assert num_ids is not None
        weights = torch.zeros(len(lengths), self.encoder.vocab_size, device=self.encoder.device)
        others = np.flatnonzero(~is_static)
        indices = Indices(others, np.repeat(np.arange(len(lengths)), num_ids), ids.astype(np.int64))
        if len(others):
            read = np.repeat(~is_static, lengths)
            with self.encoder.adapted([batch.loras[item] for item in others] if batch.loras else ()):
                pooled = self._pooled(input_ids[read], lengths[others], indices)
            weights[indices.on(weights.device)[0]] = pooled
        _, items, looked_up = indices.on(weights.device)
        weights[items, looked_up] = self._idf[looked_up]
        return weights

    def _pooled(
        self, input_ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], *extra_indices: Indices
    ) -> torch.Tensor:
        """[items, vocabulary]."""
        hidden = self.encoder.hidden_states(input_ids, lengths, extra_indices=extra_indices)
        pooled = torch.zeros(len(lengths), self.encoder.vocab_size, device=hidden.device)
        of_item = np.repeat(np.arange(len(lengths)), lengths)
        for start in range(0, len(hidden), CHUNK_TOKENS):
            items, counts = np.unique(of_item[start : start + CHUNK_TOKENS], return_counts=True)
            with self.encoder.loras.over(counts.tolist(), items.tolist()):
                logits = self._head(hidden[start : start + CHUNK_TOKENS]).float()
            if self._sum:
                logits = self._activated(logits.relu_())
            for item, rows in zip(items, logits.split_with_sizes(counts.tolist()), strict=True):
                if self._sum:
                    pooled[item] += rows.sum(0)
                else:
                    torch.maximum(pooled[item], rows.amax(0), out=pooled[item])
        # The logarithm is monotonic, so it is applied once to the maximum instead of to every token.
        return pooled if self._sum else self._activated(pooled)

    def _activated(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.log1p_().log1p_() if self._log_again else weights.log1p_()


def strongest(weights: torch.Tensor, most: int) -> torch.Tensor:
    """Return the weights with only the `most` of each row that are furthest from 0, as the library selects them."""
    places = weights.abs().topk(min(most, weights.shape[-1]), dim=-1).indices
    return torch.zeros_like(weights).scatter_(-1, places, weights.gather(-1, places))


def load_idf(directory: Path, size: int) -> torch.Tensor:
    """Return float32 [size]; LoadError if there are more or fewer weights."""
    try:
        weights: torch.Tensor = load_file(directory / WEIGHTS)["weight"].float()
    except Exception as exc:  # safetensors raises nothing narrower
        raise LoadError(f"{directory}: cannot be read: {first_line(exc)}", "corrupt") from exc
    if weights.shape != (size,):
        raise LoadError(f"{directory}: has weights {list(weights.shape)}, but the model {size} tokens", "unsupported")
    return weights


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> SpladeAdapter:
    files = SparseEncoderFiles.read(directory)
    head = TokenHead(engine.load(files.text.transformer, AutoModelForMaskedLM))
    encoder = engine.encoder(head.encoder)
    encoder.loras.model.heads.append(head.model)
    idf = None if files.idf is None else load_idf(files.idf, encoder.vocab_size).to(engine.device)
    engine.settle(encoder)
    head.prepare()
    return SpladeAdapter(encoder, head, files, idf)
