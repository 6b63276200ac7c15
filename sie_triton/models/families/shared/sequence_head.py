"""A transformers classifier over packed tokens: logits for each item."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from sie_triton.checkpoints.classifier import model_inputs
from sie_triton.contract import Batch
from sie_triton.contract.tensors import TOKEN_TYPE_IDS
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import DecoderHead, SequenceHead
from sie_triton.engines.torch.transfers import Indices
from sie_triton.models.families.shared.token_batch import tokens


class SequenceClassifier:
    """Encoder and head of the checkpoint in `transformer`; raises LoadError saying what cannot be used."""

    def __init__(self, transformer: Path, engine: TorchEngine) -> None:
        model = engine.load(transformer, AutoModelForSequenceClassification)
        self._head = (DecoderHead if model.config.is_encoder_decoder else SequenceHead)(model)
        self.encoder = engine.encoder(self._head.encoder)
        self.encoder.loras.model.heads.append(self._head.model)
        engine.settle(self.encoder)
        self._sees_types = TOKEN_TYPE_IDS.name in model_inputs(transformer)

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
