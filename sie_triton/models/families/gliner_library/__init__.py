"""GLiNER through the library gliner, in a worker environment: for checkpoints whose head we do not support.

text and labels → gliner → entities

Texts run one after another, without packing. The library truncates a text that is longer than the checkpoint reads. A
label's own threshold is applied to results found with the lowest threshold.
"""

from pathlib import Path
from typing import ClassVar

from sie_triton.contract import Extraction
from sie_triton.contract.spec import ANY_LENGTH
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.models.families.base import Family
from sie_triton.models.families.gliner import FLAT_NER, MERGE_ADJACENT, MULTI_LABEL, entities
from sie_triton.models.families.shared.labels.spans import SPAN_LENGTHS, SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import THRESHOLD

ASKED_LENGTHS = Tensor("asked_lengths", "INT32", (-1,), "[n] bytes of each item")
ASKED = Tensor("asked", "UINT8", (-1,), "[bytes] JSON of text, labels and their thresholds", ASKED_LENGTHS.name)

CHARACTERS_A_TOKEN = 4
PACKAGES = "gliner torch"


class GlinerLibrary(Family):
    extraction = Extraction((SPANS, SPAN_SCORES, SPAN_LENGTHS), entities, "required")
    features = (READ, ASKED)
    parameters = (THRESHOLD, FLAT_NER, MULTI_LABEL, MERGE_ADJACENT)
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    environment = "gliner"
    files = ("gliner_config.json",)

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True

    def longest(self, directory: Path) -> int:
        return ANY_LENGTH
