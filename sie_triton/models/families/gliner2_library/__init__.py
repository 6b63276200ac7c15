"""GLiNER2.5 through the library gliner2, in a worker environment: for checkpoints of its architecture `boundary`.

text, labels, relations, classes and structures → gliner2 → findings as those of the family gliner2

Texts run one after another, without packing. A text that is longer than the checkpoint reads is truncated.
"""

from pathlib import Path
from typing import ClassVar

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.gliner import longest_piece
from sie_triton.contract import Extraction
from sie_triton.contract.tensors import READ
from sie_triton.models.families.base import Family
from sie_triton.models.families.gliner2.findings import findings
from sie_triton.models.families.gliner2.request import PARAMETERS
from sie_triton.models.families.gliner2.tensors import COMPUTED
from sie_triton.models.families.gliner_library import ASKED

PACKAGES = "gliner2==2.1.0 torch"

# The library's results, by its names, beside those that a request names.
RESULTS = ENTITIES, RELATIONS = ("entities", "relation_extraction")

# Maximum words of a text if the checkpoint does not say.
USUAL_WORDS = 2048


class Gliner2Library(Family):
    processor_module = ".processor"
    extraction = Extraction(COMPUTED, findings, "optional")
    features = (READ, ASKED)
    parameters = PARAMETERS
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    environment = "gliner2"
    files = ("encoder_config/config.json",)

    def keeps_tokenizer(self, directory: Path) -> bool:
        return True

    def longest(self, directory: Path) -> int:
        config, encoder = (read_fields(directory / name) for name in ("config.json", "encoder_config/config.json"))
        return longest_piece(encoder, config.integer("max_len", USUAL_WORDS, least=1), 0)
