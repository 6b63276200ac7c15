"""A transformers classifier over packed tokens: logits for each item."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING, tokenizer_class_from_name

from sie_triton.checkpoints.classifier import model_inputs
from sie_triton.contract import Batch
from sie_triton.contract.tensors import TOKEN_TYPE_IDS
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import DecoderHead, SequenceHead
from sie_triton.engines.torch.transfers import Indices
from sie_triton.families.shared.token_batch import tokens


class SequenceClassifier:
    """Encoder and head of the checkpoint in `transformer`; raises LoadError saying what cannot be used."""

    def __init__(self, transformer: Path, engine: TorchEngine) -> None:
        model = engine.load(transformer, AutoModelForSequenceClassification)
        self._head = (DecoderHead if model.config.is_encoder_decoder else SequenceHead)(model)
        self.encoder = engine.encoder(self._head.encoder)
        self.encoder.loras.model.heads.append(self._head.model)
        engine.settle(self.encoder)
        self._sees_types = TOKEN_TYPE_IDS.name in tokenizer_outputs(transformer)

    def logits(self, batch: Batch) -> torch.Tensor:
        """float32 [items, labels]."""
        places = self.places(batch)
        return self.logits_of(self.states(batch, places), places)

    def places(self, batch: Batch) -> Indices:
        """Return the indices of the states that the head reads."""
        return self._head.places(*tokens(batch))

    @torch.inference_mode()
    def states(self, batch: Batch, *extra_indices: Indices) -> torch.Tensor:
        """[tokens, d]; `extra_indices` as in Encoder.hidden_states."""
        input_ids, lengths = tokens(batch)
        type_ids = batch.features[TOKEN_TYPE_IDS.name].values if self._sees_types else None
        return self.encoder.hidden_states(input_ids, lengths, type_ids=type_ids, extra_indices=extra_indices)

    @torch.inference_mode()
    def logits_of(self, hidden: torch.Tensor, places: Indices) -> torch.Tensor:
        """The same of states that are there already."""
        with self.encoder.loras.over([1] * len(places.arrays[0])):
            return self._head(hidden, places).float()


def tokenizer_outputs(transformer: Path) -> Sequence[str]:
    """Return the outputs of transformers' tokenizer for this model: those that its file names, or else its class."""
    said, name = model_inputs(transformer)
    if said is not None:
        return said
    kind: Any = tokenizer_class_from_name(name) if name else None
    kind = kind or TOKENIZER_MAPPING.get(type(AutoConfig.from_pretrained(transformer)), None)
    names: Sequence[str] = getattr(kind, "model_input_names", ())
    return names
