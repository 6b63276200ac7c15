"""GLiNER2: entities, relations, classes and structures in one pass over a text (Zaratiana et al., 2025).

schema and words → encoder → number of instances → spans or choices × fields, labels of tasks → findings
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from sie_triton.contract import Extraction, Features, Ragged
from sie_triton.contract.tensors import LABEL_TOKENS
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner2.files import Gliner2Files, is_gliner2
from sie_triton.models.families.gliner2.findings import findings
from sie_triton.models.families.gliner2.request import PARAMETERS
from sie_triton.models.families.gliner2.tensors import (
    CHOICE_LABELS,
    CHOICE_TOKENS,
    COMPUTED,
    ENTITIES,
    FEATURES,
    FIELD,
    LABEL_ROLES,
)
from sie_triton.models.families.shared.labels.words import sample_words

# Maximum tokens of the schema, which is read with each piece of a text.
MAX_PROMPT = 2048


class Gliner2(Family):
    extraction = Extraction(COMPUTED, findings, "optional")
    features = FEATURES
    parameters = PARAMETERS
    takes_loras = True
    reference_adapters: ClassVar[tuple[str, ...]] = (
        "gliner2:GLiNER2Adapter",
        "gliner2.entities:GLiNER2EntitiesAdapter",
    )
    served_elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("fastino/gliner2.5-base-v1", "fastino/gliner2.5-small-v1"), "gliner2_library"
    )
    files = ("encoder_config/config.json",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_gliner2(directory):
            return None
        files = Gliner2Files.read(directory)
        reason = f"config.json: extractor with {files.counting_layer} over {files.encoder.text('model_type', 'bert')}"
        return Recognised(reason, self.longest(directory), {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return Gliner2Files.read(directory).longest(MAX_PROMPT)

    def sample(self, lengths: Sequence[int]) -> Features:
        """Return items with labels of entities only."""
        features = sample_words(lengths)
        of_labels = features[LABEL_TOKENS.name].lengths
        assert of_labels is not None
        roles = np.full(int(of_labels.sum()), FIELD, np.int32)
        roles[np.cumsum(of_labels) - of_labels] = ENTITIES
        none, no_lengths = np.empty(0, np.int32), np.zeros(len(lengths), np.int32)
        choices = {tensor.name: Ragged(none, no_lengths) for tensor in (CHOICE_TOKENS, CHOICE_LABELS)}
        return {**features, LABEL_ROLES.name: Ragged(roles, of_labels), **choices}
