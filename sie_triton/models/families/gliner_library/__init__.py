"""GLiNER through the library gliner, in a worker environment: for checkpoints whose head we do not support.

text and labels → gliner → entities, and relations between them

Texts run one after another, without packing. The library truncates a text that is longer than the checkpoint reads. A
label's own threshold is applied to results found with the lowest threshold.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sie_triton.contract import Extraction, Findings, Label, Parameter, ParameterValue, Rows
from sie_triton.contract.spec import ANY_LENGTH
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.models.families.base import Family
from sie_triton.models.families.gliner import FLAT_NER, MERGE_ADJACENT, MULTI_LABEL, entities
from sie_triton.models.families.gliner2.request import RELATION_LABELS, request_of
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS, relations
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import THRESHOLD

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

    def longest(self, directory: Path) -> int:
        return ANY_LENGTH
