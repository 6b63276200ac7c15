"""GLiNER2.5 through the library gliner2, in a worker environment: for checkpoints of its architecture `boundary`.

text, labels, relations, classes and structures → gliner2 → findings as those of the family gliner2

Texts run one after another, without packing. A text that is longer than the checkpoint reads is truncated.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.gliner import longest_piece
from sie_triton.contract import Extraction, Features, Label, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family
from sie_triton.models.families.gliner2 import MAX_PROMPT, Gliner2Tokenizer, tokenizer_of
from sie_triton.models.families.gliner2.findings import findings
from sie_triton.models.families.gliner2.request import CLASSES, OUTPUT_SCHEMA, PARAMETERS, ExtractionRequest
from sie_triton.models.families.gliner2.tensors import COMPUTED
from sie_triton.models.families.gliner_library import ASKED
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.words import Pieces

PACKAGES = "gliner2==2.1.0 torch"

# The library's results, by its names, beside those that a request names.
RESULTS = ENTITIES, RELATIONS = ("entities", "relation_extraction")

# Maximum words of a text if the checkpoint does not say.
USUAL_WORDS = 2048


class Gliner2Library(Family):
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


class LibraryProcessor(Gliner2Tokenizer):
    def frame(self, part: Part) -> Frame:
        request, _ = self._asked(part)
        of_structures = [each.name for each in request.structures]
        names = [*RESULTS, *of_structures, *(task.name for task in request.tasks)]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            where = f"parameter {OUTPUT_SCHEMA.name if twice in of_structures else CLASSES.name}"
            raise InputError.at(where, f"{twice[:80]!r} names two results of this model; use another name")
        return super().frame(part)

    def _prompt_of(self, request: ExtractionRequest, labels: tuple[Label, ...]) -> Any:
        return labels, len(super()._prompt_of(request, labels).ids)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        asked, read = [], []
        texts = [text for _, text in framed]
        for ((labels, num_tokens), text), words in zip(framed, self._read(texts), strict=True):
            room = self._pieces.max_tokens - num_tokens - len(self._end)
            count = int(np.searchsorted(words.starts, room, side="right")) - 1
            whole = count >= len(words)
            asked.append(json.dumps([text if whole else text[: int(words.spans[count, 0])], labels]).encode())
            read.append(num_tokens + int(words.starts[min(count, len(words))]))
        written = Ragged.of([np.frombuffer(each, np.uint8) for each in asked])
        return {READ.name: Ragged(np.array(read, np.int32)), ASKED.name: written}


def load_processor(spec: ModelSpec, directory: Path) -> LibraryProcessor:
    longest = spec.max_sequence_length
    return LibraryProcessor(tokenizer_of(directory), Pieces(USUAL_WORDS, longest, 0), min(MAX_PROMPT, longest // 2))
