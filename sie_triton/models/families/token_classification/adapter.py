"""The forward pass of token classifiers: label scores of each token, and the entities of each window."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForTokenClassification

from sie_triton.checkpoints.classifier import ClassifierFiles, model_inputs
from sie_triton.contract import Batch, ParameterValue, Rows
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TOKEN_TYPE_IDS, WORD_SPANS, WORD_TOKENS
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import TokenHead
from sie_triton.models.families.shared.classes import names_of, of_texts
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS, scored
from sie_triton.models.families.shared.labels.words import pieces_of, states_at
from sie_triton.models.families.shared.token_batch import TokenAdapter, tokens
from sie_triton.models.families.token_classification import AGGREGATION, CONTINUES, aggregation
from sie_triton.models.families.token_classification.aggregation import TokenLabels, entities_of
from sie_triton.models.families.token_classification.constraints import Constraints


class TokenClassificationAdapter(TokenAdapter):
    """Token classification adapter.

    `sees_types`: the model reads token type ids. `constraints` decode the items of requests that name no strategy.
    """

    def __init__(
        self,
        encoder: TorchEncoder,
        head: TokenHead,
        labels: TokenLabels,
        constraints: Constraints | None,
        *,
        sees_types: bool,
    ) -> None:
        super().__init__(encoder)
        self._head, self._labels, self._constraints, self._sees_types = head, labels, constraints, sees_types
        self._names = names_of(labels.names.tolist())

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        type_ids = batch.features[TOKEN_TYPE_IDS.name].values if self._sees_types else None
        hidden = self.encoder.hidden_states(input_ids, lengths, type_ids=type_ids)
        with self.encoder.loras.over(lengths.tolist()):
            scores = self._head(hidden).float().log_softmax(-1)
        found = [
            self._entities(of_piece.cpu().numpy(), places, continues, options)
            for of_piece, places, continues, options in zip(
                states_at(scores, batch, WORD_TOKENS.name),
                pieces_of(batch, WORD_SPANS.name),
                pieces_of(batch, CONTINUES.name),
                batch.options or [{}] * len(lengths),
                strict=True,
            )
        ]
        return {**scored(found, SPANS, SPAN_SCORES), **of_texts(self._names, batch)}

    def _entities(
        self, scores: Floats, places: Ints, continues: Ints, options: Mapping[str, ParameterValue]
    ) -> tuple[Ints, Floats]:
        """Return the entities of a window and their scores; `scores` are logarithms of probabilities."""
        if self._constraints is not None and AGGREGATION.name not in options:
            return self._constraints.entities(scores, places)
        return entities_of(np.exp(scores), places, continues, self._labels, aggregation(options))


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> TokenClassificationAdapter:
    files = ClassifierFiles.read(directory)
    head = TokenHead(engine.load(files.text.transformer, AutoModelForTokenClassification))
    encoder = engine.encoder(head.encoder)
    encoder.loras.model.heads.append(head.model)
    engine.settle(encoder)
    head.prepare()
    sees_types = TOKEN_TYPE_IDS.name in model_inputs(files.text.transformer)
    constraints = Constraints.read(directory, files.labels)
    return TokenClassificationAdapter(encoder, head, TokenLabels.of(files.labels), constraints, sees_types=sees_types)
