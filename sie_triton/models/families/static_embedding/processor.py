"""Texts → tokens without special ones, numbered from 1. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sie_triton.contract import Features, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.static_embedding import StaticFiles
from sie_triton.models.inputs import Frame, Processor
from sie_triton.models.inputs.cutting import kept
from sie_triton.models.inputs.prompt import prompt_of
from sie_triton.models.inputs.tokenizer import open_tokenizer, packed_encodings, packed_ids, truncating


class StaticProcessor(Processor):
    """Tokenizer of a static model, with its prompts."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: StaticFiles, longest: int) -> None:
        self._tokenizer, self._files, self._longest = tokenizer, files, longest

    def frame(self, part: Part) -> Frame:
        return prompt_of(self._files.prompts, self._files.default_prompt, part)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        read = [kept(self._tokenizer, text, self._longest) for text in framed]
        encodings = self._tokenizer.encode_batch_fast(read, add_special_tokens=False)
        # A text without tokens has token 0, which stands for the zero vector.
        ids = [[token + 1 for token in each.ids] or (0,) for each in encodings]
        return {**packed_encodings(encodings), **packed_ids(ids)}


def load_processor(spec: ModelSpec, directory: Path) -> StaticProcessor:
    files = StaticFiles.read(directory)
    longest = min(spec.max_sequence_length, files.longest)
    tokenizer = truncating(open_tokenizer(files.directory), longest)
    # The library reads tokenizer.json only, which has no such setting.
    tokenizer.encode_special_tokens = False
    return StaticProcessor(tokenizer, files, longest)
