"""A request and a text → JSON, for the library; the text has no more words than the model reads. No torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2 import MAX_PROMPT, Gliner2Tokenizer, tokenizer_of
from sie_triton.models.families.gliner2.request import CLASSES, OUTPUT_SCHEMA, ExtractionRequest
from sie_triton.models.families.gliner2_library import RESULTS, USUAL_WORDS
from sie_triton.models.families.gliner_library import ASKED
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.words import Pieces


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
