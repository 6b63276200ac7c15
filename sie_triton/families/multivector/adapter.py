"""The forward pass of late-interaction models (ColBERT): a small vector for each token."""

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.arrays import Ints
from sie_triton.contract import Batch, Rows
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import states_at
from sie_triton.engines.torch.transfers import Indices
from sie_triton.families.base import Adapter
from sie_triton.families.multivector import MultiVectorOptions, disagreements, files_of
from sie_triton.families.multivector.files import MultiVectorFiles
from sie_triton.families.multivector.processor import expansion_id, with_markers
from sie_triton.families.shared.token_batch import tokens
from sie_triton.inputs.tokenizer import read_tokenizer
from sie_triton.spec import ModelSpec

log = logging.getLogger(__name__)


class MultiVectorAdapter(Adapter):
    """Late-interaction adapter.

    `filler` is the id with which queries are filled up. `skipped`, bool [vocabulary], marks tokens without a vector.
    """

    encoder: TorchEncoder

    def __init__(
        self,
        encoder: TorchEncoder,
        projection: torch.nn.Module,
        files: MultiVectorFiles,
        filler: int | None,
        skipped: npt.NDArray[np.bool_],
    ) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
        self.weights_bytes += num_bytes(projection)
        self._projection = projection
        self._normalize = files.normalize
        self._unseen_filler = filler if files.expansion is not None and not files.expansion.attend else None
        self._skipped = skipped
        self._skips_in_queries = "query" in files.skipped_in
        self._skips_in_documents = "document" in files.skipped_in

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        is_query = np.repeat(batch.is_query, lengths)
        skips = np.where(is_query, self._skips_in_queries, self._skips_in_documents)
        kept = np.flatnonzero(~(self._skipped[input_ids] & skips))
        places, keys = Indices(kept), self._keys(input_ids, lengths, batch.is_query)
        hidden = self.encoder.hidden_states(input_ids, lengths, keys, extra_indices=[places])
        vectors = self._projection(states_at(hidden, places).float())
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        items = np.repeat(np.arange(len(lengths)), lengths)
        return {
            MULTIVECTOR.name: vectors.cpu().numpy(),
            MULTIVECTOR_LENGTHS.name: np.bincount(items[kept], minlength=len(lengths)).astype(np.int32),
        }

    def _keys(self, input_ids: Ints, lengths: Ints, is_query: npt.NDArray[np.bool_]) -> Ints:
        """Return how many tokens of each item are attended to: in a query, those before the filling."""
        keys = lengths.copy()
        if self._unseen_filler is not None:
            ends = np.cumsum(lengths)
            for item in np.flatnonzero(is_query):
                ids = input_ids[ends[item] - lengths[item] : ends[item]]
                text = np.flatnonzero(ids != self._unseen_filler)
                keys[item] = text[-1] + 1 if len(text) else 1
        return keys


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> MultiVectorAdapter:
    """Load a model of MultiVectorEncoder, PyLate or Stanford's ColBERT; raise LoadError saying what cannot be used."""
    options = MultiVectorOptions.of(spec)
    files = files_of(directory, options)
    for line in disagreements(files, options):
        log.warning("%s", line)
    encoder = engine.encoder(engine.load(files.text.transformer))
    projection = dense_layers(files.dense).eval().to(engine.device)
    tokenizer = with_markers(read_tokenizer(files.text, spec.max_sequence_length), files.markers)
    filler = expansion_id(tokenizer, files.expansion) if files.expansion is not None else None
    skipped = np.zeros(encoder.vocab_size, np.bool_)
    known = tokenizer.get_vocab()
    skipped[[known[word] for word in files.skipped if word in known]] = True
    engine.settle(encoder)
    return MultiVectorAdapter(encoder, projection, files, filler, skipped)
