"""GLiFormer through the library gliformer, in a worker environment: entities, relations, classes, and vectors of texts.

text, labels and groups of labels → gliformer → entities, relations between them, classes
text → gliformer → vector

Each task has a forward pass of its own, as the library's methods for one task have. Texts run one after another,
without packing. The library truncates a text that is longer than the checkpoint reads.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.contract import ENCODE_OUTPUTS, Extraction, Findings, ParameterValue, Rows
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner import FLAT_NER, MULTI_LABEL
from sie_triton.models.families.gliner2.request import RELATION_LABELS
from sie_triton.models.families.gliner_library import ASKED, CONFIG
from sie_triton.models.families.gliner_library import findings as findings_in_text
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS
from sie_triton.models.families.shared.label_groups import LABEL_GROUPS, grouped_findings, groups_of
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import THRESHOLD

PACKAGES = "gliformer==0.1.3 torch"

# The score of a class that does not apply is NONE.
GROUP_SCORES = Tensor("group_scores", "FP32", (-1,), "[labels of all groups]", "group_lengths")
NONE = -1.0
NUM_ASKED = Tensor("num_asked", "INT32", (-1,), "[items] labels of entities and classes")


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    if not int(rows[0][NUM_ASKED.name]):
        raise InputError.at("labels", f"is empty; send the entities to look for, or parameter {LABEL_GROUPS.name}")
    found, groups = findings_in_text(rows, options), groups_of(options)
    ends = np.cumsum([len(group.labels) for group in groups])[:-1].tolist()
    if groups:
        scores = np.split(rows[0][GROUP_SCORES.name].astype(np.float64), ends)
        of_groups = grouped_findings(groups, scores, 0, bool(options.get(MULTI_LABEL.name, False)))
        found.classifications, found.data = of_groups.classifications, of_groups.data
    return found


class Gliformer(Family):
    processor_module = ".processor"
    outputs = (ENCODE_OUTPUTS["dense"],)
    extraction = Extraction(
        (SPANS, SPAN_SCORES, RELATIONS, RELATION_SCORES, GROUP_SCORES, NUM_ASKED), findings, "optional"
    )
    features = (READ, ASKED)
    parameters = (THRESHOLD, FLAT_NER, MULTI_LABEL, RELATION_LABELS, LABEL_GROUPS)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    environment = "gliformer"
    reference_adapters = ("gliformer:GLiFormerAdapter",)
    files = (CONFIG,)

    def recognise(self, directory: Path) -> Recognised | None:
        if not has_file(directory / CONFIG) or not is_gliformer(config := read_fields(directory / CONFIG)):
            return None
        embedding = config.fields("embedding_config") if has_head(config, "embedding") else None
        dims = (
            {} if embedding is None else {"dense": embedding.integer("projection_dim", config.integer("hidden_size"))}
        )
        reason = f"{CONFIG}: {config.text('model_type')}"
        return Recognised(reason, self.longest(directory), dims, extracts=True, weights=(directory,))

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True

    def longest(self, directory: Path) -> int:
        return read_fields(directory / CONFIG).integer("max_len", 2048, least=8)


def is_gliformer(config: Fields) -> bool:
    return config.text("model_type", "").startswith("gliformer")


def has_head(config: Fields, name: str) -> bool:
    """Return True if the checkpoint has the head `name`: ner, joint_relex, classification or embedding."""
    return config.values.get(f"{name}_config") is not None
