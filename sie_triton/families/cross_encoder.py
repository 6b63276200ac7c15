"""The cross-encoder family: one score for query and text read together, from a sequence-classification head."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING, tokenizer_class_from_name

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.contract import SCORES, TOKEN_TYPE_IDS
from sie_triton.engines.torch.dense_layers import activation
from sie_triton.engines.torch.encoder import Encoder, load_model
from sie_triton.engines.torch.heads import SequenceHead
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.probe import choose_path
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

log = logging.getLogger(__name__)


class CrossEncoderAdapter:
    """`activation` makes a score of the only label's logit; `sees_types` if the model is told query from text."""

    def __init__(self, encoder: Encoder, head: SequenceHead, activation: torch.nn.Module, *, sees_types: bool) -> None:
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.weights_bytes = encoder.weights_bytes
        self._head = head
        self._activation = activation
        self._sees_types = sees_types

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Rows:
        type_ids = batch.type_ids if self._sees_types else None
        hidden = self.encoder.hidden_states(batch.input_ids, batch.lengths, type_ids=type_ids)
        scores = self._activation(self._head(hidden, batch.lengths).float())
        return {SCORES.name: scores[:, 0].cpu().numpy().astype(np.float32)}


def load(spec: ModelSpec, directory: Path, device: str, measurements: Measurements) -> CrossEncoderAdapter:
    """Load a CrossEncoder directory; LoadError says what in it cannot be used."""
    files = CrossEncoderFiles.read(directory)
    dtype = choose_dtype(spec.runtime.precision, device)
    head = SequenceHead(load_model(files.text.transformer, dtype, device, AutoModelForSequenceClassification))
    encoder = Encoder(head.encoder, spec.runtime.attention)
    verdict = choose_path(encoder, spec.max_sequence_length, measurements)
    log.info("%s runs %s (%s), attention kernel %s", spec.model, verdict.path, verdict.reason, encoder.kernel)
    sees_types = TOKEN_TYPE_IDS.name in tokenizer_outputs(files)
    return CrossEncoderAdapter(encoder, head, activation(files.activation, directory), sees_types=sees_types)


def tokenizer_outputs(files: CrossEncoderFiles) -> Sequence[str]:
    """What transformers' tokenizer of this model would give: its file may say, else its class knows."""
    if files.tokenizer_outputs is not None:
        return files.tokenizer_outputs
    kind: Any = tokenizer_class_from_name(files.tokenizer_class) if files.tokenizer_class else None
    kind = kind or TOKENIZER_MAPPING.get(type(AutoConfig.from_pretrained(files.text.transformer)), None)
    names: Sequence[str] = getattr(kind, "model_input_names", ())
    return names
