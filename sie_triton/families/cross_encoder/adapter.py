"""The cross-encoder family: one score for query and text read together, from a sequence-classification head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING, tokenizer_class_from_name

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.tensors import INPUT_IDS, SCORES, TOKEN_TYPE_IDS
from sie_triton.engines.torch.dense_layers import activation
from sie_triton.engines.torch.encoder import Encoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import SequenceHead
from sie_triton.families.base import Adapter
from sie_triton.families.token_batch import tokens


class CrossEncoderAdapter(Adapter):
    """`activation` makes a score of the only label's logit; `sees_types` if the model is told query from text."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, head: SequenceHead, activation: torch.nn.Module, *, sees_types: bool) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
        self._head = head
        self._activation = activation
        self._sees_types = sees_types

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        type_ids = batch.features[TOKEN_TYPE_IDS.name].values if self._sees_types else None
        hidden = self.encoder.hidden_states(input_ids, lengths, type_ids=type_ids)
        scores = self._activation(self._head(hidden, lengths).float())
        return {SCORES.name: scores[:, 0].cpu().numpy().astype(np.float32)}


def load(directory: Path, engine: TorchEngine) -> CrossEncoderAdapter:
    """Load a CrossEncoder directory; LoadError says what in it cannot be used."""
    files = CrossEncoderFiles.read(directory)
    head = SequenceHead(engine.load(files.text.transformer, AutoModelForSequenceClassification))
    encoder = engine.encoder(head.encoder)
    engine.settle(encoder)
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
