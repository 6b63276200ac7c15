"""Texts, labels and groups of labels → JSON, for the library. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError
from sie_triton.models.families.gliformer import has_head
from sie_triton.models.families.gliner2.request import RELATION_LABELS
from sie_triton.models.families.gliner_library import CONFIG, PlainProcessor, relation_labels
from sie_triton.models.families.shared.label_groups import LABEL_GROUPS, groups_of
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.tokenizer import open_tokenizer

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
