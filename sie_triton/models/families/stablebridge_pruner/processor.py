"""Query and passage → rows of packed token ids, with each token's place in the passage. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.stablebridge_pruner import PASSAGE
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.windows import TextWindow, WindowProcessor, packed, windows
from sie_triton.models.inputs.words import PromptedTexts


class Query(NamedTuple):
    """The query's tokens."""

    ids: Ints
    is_scored: bool  # the passage is read once, truncated if it is too long; else in windows, and its tokens are scored


class PassageTokenizer(WindowProcessor):
    pairs = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        super().__init__(tokenizer, max_length)
        self._special = np.concatenate([ids for ids, _ in self._around.special])

    def frame(self, part: Part) -> Frame:
        said, query = part.instruction or "", part.query
        # Joined as in SIE.
        asked = said if query is None else f"{said} {query}" if said else query
        return PromptedTexts(lambda: Query(self._token_ids([asked])[0], query is not None), len(asked))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        check_whole((text for _, text in framed), self._tokenizer)
        encodings = self._tokenizer.encode_batch([text for _, text in framed], add_special_tokens=False)
        read = [
            row
            for (query, _), encoding in zip(framed, encodings, strict=True)
            for row in (self._scored(query, encoding) if query.is_scored else self._judged(query, encoding))
        ]
        rows, passages = zip(*read, strict=True)
        return {**packed(rows), PASSAGE.name: Ragged.of(passages)}

    def _scored(self, query: Query, passage: tokenizers.Encoding) -> list[tuple[TextWindow, Ints]]:
        ids = np.array(passage.ids, np.int32)
        of_query, of_passage = both_cut(len(query.ids), len(ids), self._room)
        row = self._around.row(0, query.ids[:of_query], ids[:of_passage])
        return [(row, np.empty((0, 4), np.int32))]

    def _judged(self, query: Query, passage: tokenizers.Encoding) -> list[tuple[TextWindow, Ints]]:
        asked, ids = query.ids[: self._room // 2], np.array(passage.ids, np.int32)
        offsets = np.array(passage.offsets, np.int32).reshape(-1, 2)
        # A separator written in a passage is not one of its words.
        offsets[np.isin(ids, self._special)] = 0
        before = len(asked) + sum(len(special) for special, _ in self._around.special[:2])
        rows = []
        for number, (first, end) in enumerate(windows(len(ids), self._room - len(asked))):
            numbers = np.arange(first, end, dtype=np.int32)
            tokens = np.column_stack([numbers - first + before, numbers, offsets[first:end]])
            rows.append((self._around.row(number, asked, ids[first:end]), tokens.astype(np.int32)))
        return rows


def both_cut(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of two texts that share `room`; the longer is truncated first, as in tokenizers.

    >>> both_cut(3, 4, 10), both_cut(3, 40, 10), both_cut(40, 30, 9)
    ((3, 4), (3, 7), (5, 4))
    """
    if first + second <= room:
        return first, second
    less = min(first, second)
    more = less if less > room else max(less, room - less)
    if less + more > room:
        less, more = room // 2, room // 2 + room % 2
    return (more, less) if first > second else (less, more)


def load_processor(spec: ModelSpec, directory: Path) -> PassageTokenizer:
    return PassageTokenizer.load(directory, spec.max_sequence_length)
