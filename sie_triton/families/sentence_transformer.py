"""The dense family: Transformer → Pooling → Dense layers; Normalize is left to postprocess."""

import logging
from pathlib import Path

import torch

from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import DENSE
from sie_triton.engines.torch.dense_layers import dense_layers
from sie_triton.engines.torch.encoder import Encoder, load_encoder, num_bytes
from sie_triton.engines.torch.pooling import pool
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.probe import choose_path
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

_log = logging.getLogger(__name__)


class SentenceTransformerAdapter:
    """Token states pooled to one vector an item."""

    def __init__(self, encoder: Encoder, head: torch.nn.Module, pooling: tuple[str, ...]) -> None:
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.weights_bytes = encoder.weights_bytes + num_bytes(head)
        self._head = head
        self._pooling = pooling

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Rows:
        hidden = self.encoder.hidden_states(batch.input_ids, batch.lengths)
        pooled = pool(hidden, batch, self._pooling)
        return {DENSE.name: self._head(pooled.float()).cpu().numpy()}


def load(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> SentenceTransformerAdapter:
    """Load a sentence-transformers directory; LoadError says what in it cannot be used."""
    files = SentenceTransformerFiles.read(directory)
    dtype = choose_dtype(spec.runtime.precision, device)
    encoder = load_encoder(files.text.transformer, dtype, device, spec.runtime.attention)
    head = dense_layers(files.dense)
    verdict = choose_path(encoder, spec.max_sequence_length, measurements)
    _log.info("%s runs %s (%s), attention kernel %s", spec.model, verdict.path, verdict.reason, encoder.kernel)
    pooling = (spec.pooling,) if spec.pooling else files.pooling
    return SentenceTransformerAdapter(encoder, head.eval().to(device), pooling)
