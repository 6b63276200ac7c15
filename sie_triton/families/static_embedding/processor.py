"""Texts → tokens without special ones, numbered from 1. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.tensors import TRUNCATED
from sie_triton.families.static_embedding.files import StaticFiles
from sie_triton.inputs import Frame, Processor
from sie_triton.inputs.cutting import beginning
from sie_triton.inputs.prompt import prompt_of
from sie_triton.inputs.tokenizer import open_tokenizer, packed_ids
from sie_triton.spec import ModelSpec

# Token of a text without tokens; it stands for the zero vector.
EMPTY = (0,)


class StaticProcessor(Processor):
    """Tokenizer of a static model, with its prompts."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: StaticFiles, longest: int) -> None:
        self._tokenizer, self._files, self._longest = tokenizer, files, longest

    def frame(self, part: Part) -> Frame:
        return prompt_of(self._files.prompts, self._files.default_prompt, part)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        read = [beginning(self._tokenizer, text, self._longest) for text in framed]
        whole = [each.ids for each in self._tokenizer.encode_batch_fast(read, add_special_tokens=False)]
        cut = np.array([len(ids) > self._longest for ids in whole])
        ids = [[token + 1 for token in each[: self._longest]] or EMPTY for each in whole]
        return {**packed_ids(ids), TRUNCATED.name: Ragged(cut)}


def load_processor(spec: ModelSpec, directory: Path) -> StaticProcessor:
    """Load the processor; raise LoadError saying what is wrong with its files."""
    files = StaticFiles.read(directory)
    tokenizer = open_tokenizer(files.directory)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return StaticProcessor(tokenizer, files, min(spec.max_sequence_length, files.longest))
