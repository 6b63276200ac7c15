"""The forward pass of late-interaction models (ColBERT): a small vector for each token."""

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import states_at
from sie_triton.engines.torch.transfers import Indices
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.multivector import MultiVectorOptions, disagreements, files_of, with_markers
from sie_triton.models.families.multivector.files import MultiVectorFiles, vocab_size
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.inputs.tokenizer import read_tokenizer

log = logging.getLogger(__name__)


class MultiVectorAdapter(Adapter):
    """Late-interaction adapter.

    A query may end in tokens that are not attended to, whose ids are past the vocabulary. `skipped`, bool [vocabulary],
    marks tokens without a vector in the roles of `files`, `outside` those without one in documents.
    """

    encoder: TorchEncoder

    def __init__(
        self,
        encoder: TorchEncoder,
        projection: torch.nn.Module,
        files: MultiVectorFiles,
        skipped: npt.NDArray[np.bool_],
        outside: npt.NDArray[np.bool_],
    ) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: _num_ids(encoder, files) - 1})
        self.weights_bytes += num_bytes(projection)
        self._projection = projection
        self._normalize = files.normalize
        nothing = np.zeros_like(skipped)
        self._skipped_in_queries = skipped if "query" in files.skipped_in else nothing
        self._skipped_in_documents = outside | (skipped if "document" in files.skipped_in else nothing)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        ids, lengths = tokens(batch)
        input_ids, seen = ids % self.encoder.vocab_size, ids < self.encoder.vocab_size
        items = np.repeat(np.arange(len(lengths)), lengths)
        skipped = np.where(
            batch.is_query[items], self._skipped_in_queries[input_ids], self._skipped_in_documents[input_ids]
        )
        kept = np.flatnonzero(~skipped)
        places, keys = Indices(kept), np.bincount(items[seen], minlength=len(lengths)).astype(np.int32)
        hidden = self.encoder.hidden_states(input_ids, lengths, keys, extra_indices=[places])
        vectors = self._projection(states_at(hidden, places).float())
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return {
            MULTIVECTOR.name: vectors.cpu().numpy(),
            MULTIVECTOR_LENGTHS.name: np.bincount(items[kept], minlength=len(lengths)).astype(np.int32),
        }


def _num_ids(encoder: TorchEncoder, files: MultiVectorFiles) -> int:
    """Return the number of ids: twice the vocabulary if queries are filled up unseen. LoadError if files disagree."""
    if not _hidden(files):
        return encoder.vocab_size
    if vocab_size(files.text) != encoder.vocab_size:
        message = f"vocab_size is {vocab_size(files.text)}, but the weights have"
        raise files.text.config.corrupt(f"{message} {encoder.vocab_size} tokens")
    return 2 * encoder.vocab_size


def _hidden(files: MultiVectorFiles) -> int:
    """Return the length up to which queries are filled up with tokens that are not attended to; 0: they are not."""
    expansion = files.text.lengths.expansion
    return 0 if expansion is None or expansion.attend else expansion.length


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> MultiVectorAdapter:
    """Load a model of MultiVectorEncoder, PyLate or Stanford's ColBERT; raise LoadError saying what cannot be used."""
    options = MultiVectorOptions.of(spec)
    files = files_of(directory, options)
    for line in disagreements(files, options):
        log.warning("%s", line)
    encoder = engine.encoder(engine.load(files.text.transformer))
    projection = dense_layers(files.dense).eval().to(engine.device)
    known = with_markers(read_tokenizer(files.text, spec.max_sequence_length), files.markers).get_vocab()
    skipped, outside = np.zeros((2, encoder.vocab_size), np.bool_)
    skipped[[known[word] for word in files.skipped if word in known]] = True
    if files.kept:
        outside = ~np.isin(np.arange(encoder.vocab_size), files.kept)
    engine.settle(encoder, hides=_hidden(files))
    return MultiVectorAdapter(encoder, projection, files, skipped, outside)
