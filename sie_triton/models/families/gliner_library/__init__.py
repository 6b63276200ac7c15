"""GLiNER through the library gliner, in a worker environment: for checkpoints whose head we do not support.

text and labels → gliner → entities, and relations between them

Texts run one after another, without packing. The library truncates a text that is longer than the checkpoint reads. A
label's own threshold is applied to results found with the lowest threshold.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sie_triton.checkpoints.files import read_fields
from sie_triton.contract import Extraction, Features, Findings, Label, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family
from sie_triton.models.families.gliner import FLAT_NER, MERGE_ADJACENT, MULTI_LABEL, entities
from sie_triton.models.families.gliner2.request import RELATION_LABELS, request_of
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS, relations
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import THRESHOLD
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.prompt import Prompted

ASKED = Tensor("asked", "UINT8", (-1,), "[bytes] JSON of the text and each Label", "asked_lengths")

CHARACTERS_A_TOKEN = 4
PACKAGES = "gliner torch"

CONFIG = "gliner_config.json"

RELATION_THRESHOLD = Parameter(
    "relation_threshold", float, minimum=0, maximum=1, doc="minimum score of a relation; default: threshold"
)


def relation_labels(options: Mapping[str, ParameterValue]) -> tuple[Label, ...]:
    """Return the relations that a request asks for; InputError if the parameter is not as it must be."""
    return request_of({name: value for name, value in options.items() if name == RELATION_LABELS.name}).relations


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    found, names = entities(rows, options), [label.name for label in relation_labels(options)]
    found.relations = [each._replace(label=names[int(each.label)]) for each in relations(rows, options).relations]
    return found


class GlinerLibrary(Family):
    extraction = Extraction((SPANS, SPAN_SCORES, RELATIONS, RELATION_SCORES), findings, "required")
    features = (READ, ASKED)
    parameters = (THRESHOLD, FLAT_NER, MULTI_LABEL, MERGE_ADJACENT, RELATION_LABELS, RELATION_THRESHOLD)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    environment = "gliner"
    files = (CONFIG,)

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True


class PlainProcessor(Processor):
    """Processor of a checkpoint that finds relations, or finds none."""

    def __init__(self, finds_relations: bool) -> None:
        self._finds_relations = finds_relations

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        if relation_labels(part.options) and not self._finds_relations:
            raise InputError.at(f"parameter {RELATION_LABELS.name}", "this model finds no relations; leave it out")
        labels = tuple(part.labels)
        return Prompted(lambda: labels, sum(len(label.read) for label in labels))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        asked = [json.dumps([text, labels]).encode() for labels, text in framed]
        written = Ragged.of([np.frombuffer(each, np.uint8) for each in asked])
        return {READ.name: Ragged(1 + written.of_items // CHARACTERS_A_TOKEN), ASKED.name: written}


def load_processor(spec: ModelSpec, directory: Path) -> PlainProcessor:
    return PlainProcessor(bool(read_fields(directory / CONFIG).values.get("relations_layer")))
