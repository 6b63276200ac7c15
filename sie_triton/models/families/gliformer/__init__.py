"""GLiFormer through the library gliformer, in a worker environment: entities, relations, classes, and vectors of texts.

text, labels and groups of labels → gliformer → entities, relations between them, classes
text → gliformer → vector

Each task has a forward pass of its own, as the library's methods for one task have. Texts run one after another,
without packing. The library truncates a text that is longer than the checkpoint reads.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.contract import ENCODE_OUTPUTS, Extraction, Features, Findings, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner import FLAT_NER, MULTI_LABEL
from sie_triton.models.families.gliner2.request import RELATION_LABELS
from sie_triton.models.families.gliner_library import ASKED, CONFIG, PlainProcessor, relation_labels
from sie_triton.models.families.gliner_library import findings as findings_in_text
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS
from sie_triton.models.families.shared.label_groups import LABEL_GROUPS, grouped_findings, groups_of
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import THRESHOLD
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.tokenizer import open_tokenizer

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


# Maximum relations: the library scores each between all pairs of a text's entities.
MAX_RELATIONS = 32


class GliformerProcessor(PlainProcessor):
    """Processor of a checkpoint with the heads in `config`, which reads labels and text of `max_length` tokens."""

    def __init__(self, config: Fields, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        super().__init__(has_head(config, "joint_relex"))
        self._classifies = has_head(config, "classification")
        self._tokenizer, self._max_length = tokenizer, max_length

    def frame(self, part: Part) -> Frame:
        framed = super().frame(part)
        relations, groups = relation_labels(part.options), groups_of(part.options)
        if groups and not self._classifies:
            raise InputError.at(f"parameter {LABEL_GROUPS.name}", "this model has no classes; leave it out")
        if relations and not part.labels:
            raise InputError.at("labels", "is empty; send the entities between which relations are looked for")
        if len(relations) > MAX_RELATIONS:
            raise InputError.at(
                f"parameter {RELATION_LABELS.name}", f"has {len(relations)}; send at most {MAX_RELATIONS}"
            )
        self._check_length("labels", [each.read for each in (*part.labels, *relations)])
        names = [name for group in groups for name in (group.name, *(each.read for each in group.labels))]
        self._check_length(f"parameter {LABEL_GROUPS.name}", names)
        return framed

    def _check_length(self, field: str, names: list[str]) -> None:
        """Raise InputError if names leave less than half of what the model reads for the text."""
        encodings = self._tokenizer.encode_batch(names, add_special_tokens=False)
        num_tokens, most = sum(1 + len(each) for each in encodings), self._max_length // 2
        if num_tokens > most:
            raise InputError.at(
                field, f"has {num_tokens} tokens; this model reads at most {most} of them with each text"
            )

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        features = super().encode(framed, is_query=is_query)
        read = features[READ.name].values.clip(max=self._max_length)
        return {**features, READ.name: Ragged(read)}


def load_processor(spec: ModelSpec, directory: Path) -> GliformerProcessor:
    config = read_fields(directory / CONFIG)
    return GliformerProcessor(config, open_tokenizer(directory), spec.max_sequence_length)
