"""Tokens of a text → rows that a model reads by themselves, with what its tokenizer puts around them. No torch.

A long text becomes windows that overlap, so that what stands at the edge of one is inside another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Ragged
from sie_triton.contract.tensors import INPUT_IDS, PIECE, TOKEN_TYPE_IDS
from sie_triton.errors import LoadError
from sie_triton.inputs.base import Processor
from sie_triton.inputs.text import check_whole
from sie_triton.inputs.tokenizer import read_tokenizer

Ints = npt.NDArray[np.int32]

# So many tokens are in two windows, or a quarter of one where that is less.
OVERLAP = 64

# Of a text, in all its rows: a request beyond it would take hours, and gigabytes on its way.
MAX_TOKENS = 4_000_000


class Row(NamedTuple):
    """`piece`: which of its text it is."""

    piece: int
    ids: Ints
    types: Ints


@dataclass(frozen=True, slots=True)
class Around:
    """What a tokenizer puts before, between and behind its texts, each with the ids that tell texts apart.

    `types` are those of the texts themselves.
    """

    special: tuple[tuple[Ints, Ints], ...]
    types: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer, *, pairs: bool) -> "Around":
        """LoadError where the tokenizer is of no use for texts."""
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

    def row(self, piece: int, *texts: Ints) -> Row:
        """Those of the tokenizer's one text, or two, with the special tokens."""
        first, *others = self.special
        ids, types = [first[0]], [first[1]]
        for text, kind, (after, after_types) in zip(texts, self.types, others, strict=True):
            ids += [text, after]
            types += [np.full(len(text), kind, np.int32), after_types]
        return Row(piece, np.concatenate(ids), np.concatenate(types))


class WindowProcessor(Processor):
    """What makes such rows: `_room` is what a row has for tokens of its text, or, with `pairs`, of two texts."""

    pairs: ClassVar[bool]

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._around = Around.of(tokenizer, pairs=self.pairs)
        self._tokenizer = tokenizer
        self._room = max_length - len(self._around)

    @classmethod
    def load(cls, directory: Path, max_length: int) -> Self:
        """LoadError says what is wrong with its files."""
        files = TextFiles.read(directory)
        longest = min(max_length, files.max_sequence_length)
        return cls(read_tokenizer(files, longest, pairs=cls.pairs), longest)

    def _token_ids(self, texts: Sequence[str]) -> list[Ints]:
        """Tokenize whole texts without special tokens; Unreadable if a text is too long."""
        check_whole(texts)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]


def windows(length: int, room: int) -> Iterator[tuple[int, int]]:
    """First token of each and the one behind its last; one, empty, where there is no token.

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


def packed(rows: Sequence[Row]) -> dict[str, Ragged]:
    """One row after another."""
    numbers, ids, types = zip(*rows, strict=True)
    lengths = np.array(list(map(len, ids)), np.int32)
    return {
        INPUT_IDS.name: Ragged(np.concatenate(ids), lengths),
        TOKEN_TYPE_IDS.name: Ragged(np.concatenate(types), lengths),
        PIECE.name: Ragged(np.array(numbers, np.int32)),
    }
