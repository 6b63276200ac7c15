"""Text → a row of packed token ids for each of its windows. No torch."""

from collections.abc import Sequence
from typing import Any

from sie_triton.contract import Features
from sie_triton.inputs.windows import WindowProcessor, packed, windows


class WindowTokenizer(WindowProcessor):
    """A text of more tokens than the model reads is cut into windows that overlap."""

    pairs = False

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return packed(
            [
                self._around.row(number, text[start:end])
                for text in self._token_ids(framed)
                for number, (start, end) in enumerate(windows(len(text), self._room))
            ]
        )
