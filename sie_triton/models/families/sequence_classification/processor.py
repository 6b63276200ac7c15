"""Text → a row of packed token ids for each of its windows. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sie_triton.contract import Features
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.inputs.windows import WindowProcessor, packed, windows


class WindowTokenizer(WindowProcessor):
    """Tokenizer that cuts a text longer than the model reads into overlapping windows."""

    pairs = False

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return packed(
            [
                self._around.row(number, text[start:end])
                for text in self._token_ids(framed)
                for number, (start, end) in enumerate(windows(len(text), self._room))
            ]
        )


def load_processor(spec: ModelSpec, directory: Path) -> WindowTokenizer:
    return WindowTokenizer.load(directory, spec.max_sequence_length)
