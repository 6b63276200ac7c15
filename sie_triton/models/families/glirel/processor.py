"""Labels, words and the entities among them → rows of packed token ids, as glirel writes them. No torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Known, Label, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import InputError
from sie_triton.models.families.gliner import MAX_PROMPT
from sie_triton.models.families.glirel import KNOWN, MAX_ENTITIES
from sie_triton.models.families.glirel.files import ADDED, ADDED_SPECIAL, MARKER, SEPARATOR, GlirelFiles
from sie_triton.models.families.shared.labels.words import marked
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import LabelledWords, Pieces, Words, WordsPrompt, WordsRow, WordTokenizer, packed


class GlirelTokenizer(LabelledWords):
    """Tokenizer for rows of the form: marker label marker label … separator word word …

    Neighbouring pieces share half of their words, so that entities up to half a piece apart are in one piece.
    """

    def __init__(self, files: GlirelFiles, max_length: int, max_prompt: int) -> None:
        tokenizer = open_tokenizer(files.tokenizer)
        tokenizer.add_special_tokens(list(ADDED_SPECIAL))
        tokenizer.add_tokens(list(ADDED))
        longest = min(max_length, files.longest(max_prompt))
        pieces = Pieces(files.max_words, longest, files.max_words // 2)
        super().__init__(tokenizer, pieces, min(max_prompt, longest // 2))

    def frame(self, part: Part) -> Frame:
        for i, element in enumerate(part.elements):
            if len(element.known) > MAX_ENTITIES:
                given = len(element.known)
                raise InputError.at(
                    f"entities[{i}]", f"has {given} entities; this model reads at most {MAX_ENTITIES} in one text"
                )
            for number, entity in enumerate(element.known):
                if not element.text[entity.start : entity.end].strip():
                    raise InputError.at(
                        f"entities[{i}]", f"entity {number}: contains only spaces; send the places of words"
                    )
        return super().frame(part)

    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        return marked(labels, words, MARKER, SEPARATOR)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = self._words.words([element.text for _, element in framed])
        read = [
            piece
            for (prompt, element), words in zip(framed, texts, strict=True)
            for piece in self._read(prompt, words, _known(element.known, words))
        ]
        rows, known = zip(*read, strict=True)
        return {**packed(rows), KNOWN.name: Ragged.of(known)}

    def _read(self, prompt: WordsPrompt, words: Words, known: Ints) -> Iterator[tuple[WordsRow, Ints]]:
        """Yield the pieces of a text with at least two entities, or else its first piece."""
        within = [(first, end, _within(known, first, end)) for first, end in self._pieces.of(words, self._room(prompt))]
        for number, (first, end, own) in enumerate([each for each in within if len(each[2]) > 1] or within[:1]):
            yield self._row(number, prompt, words, first, end), own


def _known(known: Sequence[Known], words: Words) -> Ints:
    """Return int32 [entities, 5], as KNOWN, with words counted in the text: each entity that covers a word, once."""
    places = np.array(list(dict.fromkeys((each.start, each.end) for each in known)), np.int32).reshape(-1, 2)
    first = np.searchsorted(words.spans[:, 1], places[:, 0], side="right")
    last = np.searchsorted(words.spans[:, 0], places[:, 1], side="left") - 1
    found = np.stack([np.arange(len(places)), first, last, places[:, 0], places[:, 1]], 1).astype(np.int32)
    covering: Ints = found[first <= last]
    return covering


def _within(known: Ints, first: int, end: int) -> Ints:
    """Return the entities inside a piece, with words counted in the piece."""
    own: Ints = known[(known[:, 1] >= first) & (known[:, 2] < end)] - np.array([0, first, first, 0, 0], np.int32)
    return own


def load_processor(spec: ModelSpec, directory: Path) -> GlirelTokenizer:
    return GlirelTokenizer(GlirelFiles.read(directory), spec.max_sequence_length, MAX_PROMPT)
