"""Long texts → overlapping chunks, each of which becomes an item. No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import tokenizers

from sie_triton.contract import CHUNK_OVERLAP, CHUNK_TOKENS, LATE_CHUNKING, Options, Spans
from sie_triton.contract.arrays import Array
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.limits import LIMITS, InputLimits
from sie_triton.models.inputs.text import Unreadable

# Start and end in a text, in code points; end exclusive.
Span = tuple[int, int]

# Those of a chunk and, if its text is read whole, those of its tokens.
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunking:
    """Maximum tokens of a chunk with its prompt, and of those that it shares with the one before."""

    size: int
    overlap: int = 0
    is_late: bool = False  # the model reads the whole text, and pools each chunk

    @classmethod
    def read(cls, given: Options, options: Options) -> "Chunking | None":
        """Read the parameters of a request; None if it does not split texts. InputError for one without chunks.

        `options` are the parameters over those of the profile.
        """
        if CHUNK_TOKENS.name in given:
            is_late = bool(options.get(LATE_CHUNKING.name, False))
            return cls(int(given[CHUNK_TOKENS.name]), int(given.get(CHUNK_OVERLAP.name, 0)), is_late)
        for each in (CHUNK_OVERLAP, LATE_CHUNKING):
            if given.get(each.name, False) is not False:
                raise InputError.at(f"parameter {each.name}", f"needs {CHUNK_TOKENS.name}; send both, or neither")
        return None


@dataclass(frozen=True, slots=True)
class Atoms:
    """Parts of a text that no chunk cuts: tokens, several together if they share a character, and what has no token."""

    starts: Array  # [n + 1] code points, the last one the end of the text
    before: Array  # [n + 1] number of tokens before each
    words: Array  # indices of those that begin after white space

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer, text: str) -> "Atoms":
        encoding = tokenizer.encode(text, add_special_tokens=False)
        offsets = [each for part in (encoding, *encoding.overflowing) for each in part.offsets if each[0] < each[1]]
        found = np.array(sorted(offsets), np.int64).reshape(-1, 2)
        reach = np.maximum.accumulate(found[:, 1])
        opens = np.flatnonzero(np.concatenate([[True], found[1:, 0] >= reach[:-1]])[: len(found)])
        starts = found[opens, 0]
        at_words = [any(map(str.isspace, text[max(0, start - 1) : start + 1])) for start in starts.tolist()]
        starts[:1] = 0
        return cls(np.append(starts, len(text)), np.append(opens, len(found)), np.flatnonzero(at_words))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def text_of(self, text: str, first: int, last: int) -> str:
        """Return the text of the atoms from `first` up to `last`, exclusive, without white space at its end."""
        part = text[self.starts[first] : self.starts[last]]
        return part.rstrip() or part


class Splitter:
    """Splits the texts of one part with the prompt `frame`. InputError if the prompt leaves no room for a text.

    A chunk begins and ends between words, unless a word is longer than half of it. Sent alone, `text[start:end]` gives
    the same result as the chunk.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, frame: Frame, chunking: Chunking, limits: InputLimits = LIMITS
    ) -> None:
        self._tokenizer, self._frame, self._limits = tokenizer, frame, limits
        self._size = min(chunking.size, int((tokenizer.truncation or {})["max_length"]))
        self._overlap, self._is_late = chunking.overlap, chunking.is_late
        self._room = -self._excess("")
        if self._room < 1:
            problem = f"{self._size} tokens leave no room for a text besides its prompt and special tokens; raise it"
            raise InputError.at(f"parameter {CHUNK_TOKENS.name}", problem)
        if self._overlap > self._room // 2:
            problem = f"must be at most {self._room // 2}, half of the tokens of a chunk that are of its text"
            raise InputError.at(f"parameter {CHUNK_OVERLAP.name}", f"{problem}; got {self._overlap}")

    def places(self, text: str) -> list[Place]:
        """Return the chunks of a text. Raise Unreadable if the text is too long, to be read whole or at all."""
        return self._late(text) if self._is_late else [*self.spans(text)]

    def _late(self, text: str) -> list[Place]:
        """Return the chunks with their tokens. The first chunk has those before it too, the last one those after it."""
        check_whole([text], self._tokenizer)
        encoding = self._tokenizer.encode(self._frame.around(text))
        if encoding.overflowing:
            most = int((self._tokenizer.truncation or {})["max_length"])
            raise Unreadable(f"has more than {most} tokens, which is what the model reads at once; send a shorter text")
        starts, ends = np.array(self.spans(text)).T
        token_ends = np.maximum.accumulate(np.array(encoding.offsets)[:, 1]) - self._size_before()
        firsts, lasts = (np.searchsorted(token_ends, places, "right") for places in (starts, ends))
        firsts[0], lasts[-1] = 0, len(encoding)
        lasts = np.maximum(lasts, firsts + 1)  # a token may end in the chunk after that of its first character
        return [tuple(each) for each in np.stack([starts, ends, firsts, lasts], 1).tolist()]

    def _size_before(self) -> int:
        """Return the size of the prompt before a text."""
        framed = zip(self._frame.around("a"), self._frame.around("b"), strict=True)
        return next(i for i, (first, second) in enumerate(framed) if first != second)

    def spans(self, text: str) -> list[Span]:
        """Return the chunks of a text, at least one. Raise Unreadable if the text is too long."""
        if self._excess(text) <= 0:
            return [(0, len(text))]
        check_whole([text], self._tokenizer)
        spans: list[Span] = []
        for span in self._spans(text, Atoms.of(self._tokenizer, text)):
            spans.append(span)
            if len(spans) * self._size > self._limits.max_window_tokens:
                most = self._limits.max_window_tokens
                raise Unreadable(f"makes chunks of more than {most} tokens; send a shorter text, or larger chunks")
        return spans or [(0, len(text))]

    def _spans(self, text: str, atoms: Atoms) -> Iterator[Span]:
        first = 0
        while first < len(atoms):
            last = self._last(text, atoms, first)
            start = int(atoms.starts[first])
            yield start, start + len(atoms.text_of(text, first, last))
            first = last if last == len(atoms) else max(first + 1, self._following(atoms, last))

    def _last(self, text: str, atoms: Atoms, first: int) -> int:
        """Return the end of the chunk that begins with the atom `first`, as the index of the next atom."""
        before, room = atoms.before, self._room
        last = max(first + 1, int(np.searchsorted(before, before[first] + room, "right")) - 1)
        while True:
            last = last if last == len(atoms) else self._between_words(atoms, first, last)
            excess = self._excess(atoms.text_of(text, first, last))
            if excess <= 0:
                return last
            if last == first + 1:
                problem = f"is too small for the character at {atoms.starts[first]} of a text; raise it"
                raise InputError.at(f"parameter {CHUNK_TOKENS.name}", problem)
            last = max(first + 1, last - excess)

    def _between_words(self, atoms: Atoms, first: int, last: int) -> int:
        place = int(np.searchsorted(atoms.words, last, "right")) - 1
        word = int(atoms.words[place]) if place >= 0 else 0
        return word if word > (first + last) // 2 else last

    def _following(self, atoms: Atoms, last: int) -> int:
        """Return the first atom of the chunk after the one that ends before the atom `last`."""
        first = int(np.searchsorted(atoms.before, atoms.before[last] - self._overlap))
        place = int(np.searchsorted(atoms.words, first))
        word = int(atoms.words[place]) if place < len(atoms.words) else last + 1
        return word if word <= last else first

    def _excess(self, text: str) -> int:
        """Return by how many tokens the model would read more of a text than of a chunk; 0 or less if it fits."""
        (encoding,) = encoded(self._tokenizer, [self._frame.around(text)])
        return sum(sum(part.attention_mask) for part in (encoding, *encoding.overflowing)) - self._size


def spans_of(chunks: Sequence[Sequence[int]]) -> list[Spans]:
    """Return the tokens of each chunk of each text that is read whole; none if the chunks are read alone.

    >>> spans_of([[0, 0, 9, 0, 5], [0, 10, 19, 5, 8], [1, 0, 2, 0, 3]]), spans_of([[0, 0, 9]])
    ([[(0, 5), (5, 8)], [(0, 3)]], [])
    """
    late = [each for each in chunks if len(each) > 3]
    return [[(first, last) for *_, first, last in own] for _, own in groupby(late, itemgetter(0))]
