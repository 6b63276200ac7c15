"""The late-interaction family (ColBERT): a small vector for each token."""

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.multi_vector import MultiVectorFiles
from sie_triton.checkpoints.stanford_colbert import read_multi_vector
from sie_triton.contract import MULTIVECTOR, MULTIVECTOR_LENGTHS
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import Encoder, load_encoder, num_bytes
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.probe import choose_path
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.families.multivector_tokenizer import expansion_id, with_markers
from sie_triton.inputs.tokenizer import read_tokenizer
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int32]


class MultiVectorAdapter:
    """`filler` is the id that queries are filled up with, `skipped` bool [vocabulary] what gives no vector."""

    def __init__(
        self,
        encoder: Encoder,
        projection: torch.nn.Module,
        files: MultiVectorFiles,
        filler: int | None,
        skipped: npt.NDArray[np.bool_],
    ) -> None:
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.weights_bytes = encoder.weights_bytes + num_bytes(projection)
        self._projection = projection
        self._normalize = files.normalize
        self._unseen_filler = filler if files.expansion is not None and not files.expansion.attend else None
        self._skipped = skipped
        self._skips_in_queries = "query" in files.skipped_in
        self._skips_in_documents = "document" in files.skipped_in

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Rows:
        is_query = np.repeat(batch.is_query, batch.lengths)
        skips = np.where(is_query, self._skips_in_queries, self._skips_in_documents)
        kept = ~(self._skipped[batch.input_ids] & skips)
        hidden = self.encoder.hidden_states(batch.input_ids, batch.lengths, self._keys(batch))
        vectors = self._projection(hidden[torch.from_numpy(kept).to(hidden.device)].float())
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        items = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        return {
            MULTIVECTOR.name: vectors.cpu().numpy(),
            MULTIVECTOR_LENGTHS.name: np.bincount(items[kept], minlength=len(batch.lengths)).astype(np.int32),
        }

    def _keys(self, batch: PackedBatch) -> Ints:
        """How much of each item is looked at: of a query, what stands before the filling."""
        keys = batch.lengths.copy()
        if self._unseen_filler is not None:
            ends = np.cumsum(batch.lengths)
            for item in np.flatnonzero(batch.is_query):
                ids = batch.input_ids[ends[item] - batch.lengths[item] : ends[item]]
                text = np.flatnonzero(ids != self._unseen_filler)
                keys[item] = text[-1] + 1 if len(text) else 1
        return keys


def load(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> MultiVectorAdapter:
    """Load what MultiVectorEncoder, PyLate or Stanford's ColBERT saved; LoadError says what in it cannot be used."""
    files = read_multi_vector(directory)
    dtype = choose_dtype(spec.runtime.precision, device)
    encoder = load_encoder(files.text.transformer, dtype, device, spec.runtime.attention)
    projection = dense_layers(files.dense).eval().to(device)
    tokenizer = with_markers(read_tokenizer(files.text, spec.max_sequence_length), files.markers)
    filler = expansion_id(tokenizer, files.expansion) if files.expansion is not None else None
    skipped = np.zeros(encoder.vocab_size, np.bool_)
    known = tokenizer.get_vocab()
    skipped[[known[word] for word in files.skipped if word in known]] = True
    verdict = choose_path(encoder, spec.max_sequence_length, measurements)
    log.info("%s runs %s (%s), attention kernel %s", spec.model, verdict.path, verdict.reason, encoder.kernel)
    return MultiVectorAdapter(encoder, projection, files, filler, skipped)
