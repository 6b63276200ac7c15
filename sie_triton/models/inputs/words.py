"""Texts → words → packed tokens after a prompt of labels, in pieces that a model reads one by one. No torch.

A long text becomes overlapping pieces, so that what is at the edge of one piece is inside another. Words keep their
places in the text: code points, end exclusive.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, WORD_SPANS, WORD_TOKENS
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.prompt import Prompted

# A word, with parts joined by hyphens and underscores; or any other character except spaces.
WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")

# Size of the cache of prompts.
KEPT_PROMPTS = 64


@dataclass(frozen=True, slots=True)
class Words:
    """Words of a text: `spans` int32 [words, 2]; `ids` int32 [tokens]; `starts` int64 [words + 1], indices in `ids`."""

    spans: Ints
    ids: Ints
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spans)


class WordsPrompt(NamedTuple):
    """Tokens before the words: `ids` int32; `places` int32, the index in `ids` of each label's token."""

    ids: Ints
    places: Ints
    thresholds: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Limits of a piece in words and tokens; `overlap` is the number of words that two pieces share."""

    max_words: int
    max_tokens: int
    overlap: int

    def of(self, words: Words, room: int) -> Iterator[tuple[int, int]]:
        """Yield the first word of each piece and the end, exclusive: up to `room` tokens, at least one word."""
        first = 0
        while True:
            fits = int(np.searchsorted(words.starts, words.starts[first] + room, side="right")) - 1
            end = min(max(fits, first + 1), first + self.max_words, len(words))
            yield first, end
            if end >= len(words):
                return
            first = max(first + 1, end - min(self.overlap, (end - first) // 2))


class WordTokenizer:
    """Tokenizes words one by one, like libraries that pass their tokenizer a list of words."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer = tokenizer
        inner, around = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
        at = next(i for i in range(len(around)) if around[i : i + len(inner)] == inner)
        self.prefix, self.suffix = np.array(around[:at], np.int32), np.array(around[at + len(inner) :], np.int32)

    def words(self, texts: Sequence[str]) -> list[Words]:
        """Return the words of each text; a word without tokens, such as a lone control character, is left out.

        Raise Unreadable if a text is too long.
        """
        check_whole(texts, self.tokenizer)
        spans = [[match.span() for match in WORD.finditer(text)] for text in texts]
        return [
            Words(np.array(places, np.int32).reshape(-1, 2)[kept], ids, starts)
            for places, (ids, kept, starts) in zip(
                spans,
                self.tokens([[text[a:b] for a, b in places] for text, places in zip(texts, spans, strict=True)]),
                strict=True,
            )
        ]

    def tokens(self, words: Sequence[Sequence[str]]) -> list[tuple[Ints, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return for each list of words: token ids, indices of the words with tokens, and starts of these words."""
        encodings = self.tokenizer.encode_batch(list(words), is_pretokenized=True, add_special_tokens=False)
        found = []
        for encoding in encodings:
            of_word = np.array(encoding.word_ids, np.int64)
            starts = np.flatnonzero(np.diff(of_word, prepend=-1))
            found.append((np.array(encoding.ids, np.int32), of_word[starts], np.append(starts, len(of_word))))
        return found


class LabelledWords(Processor):
    """Labels and the words of a text in one row; `prompt` writes the labels.

    The first token of a word represents it; with `by_last_token` the last.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, pieces: Pieces, max_prompt: int, *, by_last_token: bool = False
    ) -> None:
        self._words = WordTokenizer(tokenizer)
        self._pieces = pieces
        self._max_prompt = max_prompt
        self._by_last_token = by_last_token
        self._prompt = lru_cache(KEPT_PROMPTS)(self._checked_prompt)

    @abstractmethod
    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        """Return the labels as the family's library writes them."""

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        labels = tuple(part.labels)
        return Prompted(lambda: self._prompt(labels), sum(len(label.read) for label in labels))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        rows = [
            (number, prompt, words, first, end)
            for (prompt, _), words in zip(framed, self._words.words([text for _, text in framed]), strict=True)
            for number, (first, end) in enumerate(self._pieces.of(words, self._room(prompt)))
        ]
        return packed([self._row(*row) for row in rows])

    def _checked_prompt(self, labels: tuple[Label, ...]) -> WordsPrompt:
        made = self.prompt(labels, self._words)
        if len(made.ids) > self._max_prompt:
            raise InputError.at(
                "labels",
                f"take {len(made.ids)} tokens; this model reads at most {self._max_prompt} tokens of labels "
                "with each text; send fewer or shorter labels",
            )
        return made

    def _room(self, prompt: WordsPrompt) -> int:
        around = len(self._words.prefix) + len(prompt.ids) + len(self._words.suffix)
        return max(1, self._pieces.max_tokens - around)

    def _row(self, number: int, prompt: WordsPrompt, words: Words, first: int, end: int) -> "WordsRow":
        before = np.concatenate([self._words.prefix, prompt.ids])
        start, stop = int(words.starts[first]) if len(words) else 0, int(words.starts[end])
        # A single word may be longer than the room of a piece.
        stop = min(stop, start + self._room(prompt))
        tokens = (
            np.minimum(words.starts[first + 1 : end + 1], stop) - 1 if self._by_last_token else words.starts[first:end]
        )
        return WordsRow(
            number,
            np.concatenate([before, words.ids[start:stop], self._words.suffix]),
            (tokens - start + len(before)).astype(np.int32),
            words.spans[first:end],
            prompt.places + len(self._words.prefix),
            prompt.thresholds,
        )


class WordsRow(NamedTuple):
    """A piece: its index in the text, its tokens, the tokens and places of its words, the tokens of its labels."""

    piece: int
    ids: Ints
    word_tokens: Ints
    word_spans: Ints
    label_tokens: Ints
    thresholds: npt.NDArray[np.float32]


def packed(rows: Sequence[WordsRow]) -> Features:
    """Pack pieces into features."""
    numbers, ids, word_tokens, word_spans, label_tokens, thresholds = zip(*rows, strict=True)
    return {
        INPUT_IDS.name: Ragged.of(ids),
        PIECE.name: Ragged(np.array(numbers, np.int32)),
        WORD_TOKENS.name: Ragged.of(word_tokens),
        WORD_SPANS.name: Ragged.of(word_spans),
        LABEL_TOKENS.name: Ragged.of(label_tokens),
        LABEL_THRESHOLDS.name: Ragged.of(thresholds),
    }
