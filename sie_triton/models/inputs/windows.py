"""Tokens of a text → rows that a model reads one by one, with the tokenizer's special tokens. No torch.

A long text becomes overlapping windows, so that what is at the edge of one window is inside another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import tokenizers

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import INPUT_IDS, PIECE, TOKEN_TYPE_IDS
from sie_triton.errors import LoadError
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.tokenizer import read_tokenizer

# Overlap of two windows in tokens, or a quarter of a window if that is less.
OVERLAP = 64


class TextWindow(NamedTuple):
    """A row of one text or two; `piece` is its index in the text."""

    piece: int
    ids: Ints
    types: Ints


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens before, between and after the texts of a tokenizer."""

    special: tuple[tuple[Ints, Ints], ...]  # token ids and token type ids
    types: tuple[int, ...]  # token type ids of the texts themselves

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer, *, pairs: bool) -> "SpecialTokens":
        """Find the special tokens of a tokenizer. Raise LoadError if it makes no token of 'a'."""
        encoding = tokenizer.encode("a", "a" if pairs else None)
        ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
        places = np.array([-1 if each is None else each for each in encoding.sequence_ids])
        of_texts = [np.flatnonzero(places == text) for text in range(1 + pairs)]
        if not all(map(len, of_texts)):
            raise LoadError("the tokenizer makes no token of 'a'", "unsupported")
        starts = [0, *(int(inside[-1]) + 1 for inside in of_texts)]
        ends = [*(int(inside[0]) for inside in of_texts), len(ids)]
        special = tuple((ids[a:b], types[a:b]) for a, b in zip(starts, ends, strict=True))
        return cls(special, tuple(int(types[inside[0]]) for inside in of_texts))

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.special)

    def row(self, piece: int, *texts: Ints) -> TextWindow:
        """Make a row of one text, or of two, with the special tokens."""
        first, *others = self.special
        ids, types = [first[0]], [first[1]]
        for text, kind, (after, after_types) in zip(texts, self.types, others, strict=True):
            ids += [text, after]
            types += [np.full(len(text), kind, np.int32), after_types]
        return TextWindow(piece, np.concatenate(ids), np.concatenate(types))


class WindowProcessor(Processor):
    """A processor that makes rows. `_room`: tokens of a row for its text or, with `pairs`, for its two texts."""

    pairs: ClassVar[bool]

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._around = SpecialTokens.of(tokenizer, pairs=self.pairs)
        self._tokenizer = tokenizer
        self._room = max_length - len(self._around)

    @classmethod
    def load(cls, directory: Path, max_length: int) -> Self:
        """Read the tokenizer of a model directory. LoadError says what is wrong with its files."""
        files = TextFiles.read(directory)
        longest = min(max_length, files.max_sequence_length)
        return cls(read_tokenizer(files, longest, pairs=cls.pairs), longest)

    def _token_ids(self, texts: Sequence[str]) -> list[Ints]:
        """Tokenize whole texts without special tokens; Unreadable if a text is too long."""
        check_whole(texts, self._tokenizer)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]


def windows(length: int, room: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each window, end exclusive; a single empty window if there are no tokens.

    >>> list(windows(0, 8)), list(windows(8, 8)), list(windows(17, 8))
    ([(0, 0)], [(0, 8)], [(0, 8), (6, 14), (12, 17)])
    """
    step = room - min(OVERLAP, room // 4)
    first = 0
    while first + room < length:
        yield first, first + room
        first += step
    yield first, length


def num_windows(length: int, room: int) -> int:
    return 1 + max(0, -(-(length - room) // (room - min(OVERLAP, room // 4))))


def packed(rows: Sequence[TextWindow]) -> dict[str, Ragged]:
    """Pack rows into features."""
    numbers, ids, types = zip(*rows, strict=True)
    return {
        INPUT_IDS.name: Ragged.of(ids),
        TOKEN_TYPE_IDS.name: Ragged.of(types),
        PIECE.name: Ragged(np.array(numbers, np.int32)),
    }
