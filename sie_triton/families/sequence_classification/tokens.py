"""Text → a row of packed token ids for each of its windows. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Features
from sie_triton.inputs.base import Processor
from sie_triton.inputs.tokenizer import read_tokenizer
from sie_triton.inputs.windows import Around, packed, token_ids, windows


class WindowTokenizer(Processor):
    """A text of more tokens than the model reads is cut into windows that overlap."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        self._around = Around.of(tokenizer, pairs=False)
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._room = max_length - len(self._around)

    @classmethod
    def load(cls, directory: Path, max_length: int) -> "WindowTokenizer":
        """LoadError says what is wrong with its files."""
        files = TextFiles.read(directory)
        longest = min(max_length, files.max_sequence_length)
        return cls(read_tokenizer(files, longest), longest)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return packed(
            [
                self._around.row(number, text[start:end])
                for text in token_ids(self._tokenizer, framed)
                for number, (start, end) in enumerate(windows(len(text), self._room))
            ]
        )
