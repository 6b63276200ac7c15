"""Text → windows of packed token ids, with the place of each token in the text. No torch."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers

from sie_triton.checkpoints.files import has_file
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import WORD_SPANS, WORD_TOKENS
from sie_triton.models.families.token_classification import AGGREGATION, CONTINUES
from sie_triton.models.families.token_classification.constraints import CALIBRATION
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.windows import WindowProcessor, packed, windows


class PlacedTokens(WindowProcessor):
    """Tokenizer that keeps the places of tokens, and which of them continue a word."""

    pairs = False
    _unknown: int | None
    _is_constrained: bool  # a calibration decodes the labels, unless a request names a strategy
    _trims = False  # white space at the ends of entities

    @classmethod
    def load(cls, directory: Path, max_length: int) -> Self:
        made = super().load(directory, max_length)
        usual = getattr(made._tokenizer.model, "unk_token", None) or ""
        unknown = special_token(TextFiles.read(directory).transformer, "unk_token", usual)
        made._unknown = made._tokenizer.token_to_id(unknown)
        made._is_constrained = has_file(directory / CALIBRATION)
        return made

    def cutting(self, part: Part) -> Processor:
        return self._trimming if self._is_constrained and AGGREGATION.name not in part.options else self

    @cached_property
    def _trimming(self) -> Self:
        trimming = copy(self)
        trimming._trims = True
        return trimming

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        check_whole(framed, self._tokenizer)
        rows, tokens, places, continues = [], [], [], []
        before = len(self._around.special[0][0])
        for text, encoding in zip(
            framed, self._tokenizer.encode_batch(list(framed), add_special_tokens=False), strict=True
        ):
            ids, offsets = np.array(encoding.ids, np.int32), self._places(text, encoding)
            inside = self._inside_words(text, encoding)
            for number, (start, end) in enumerate(windows(len(ids), self._room)):
                rows.append(self._around.row(number, ids[start:end]))
                tokens.append(np.arange(before, before + end - start, dtype=np.int32))
                places.append(offsets[start:end])
                continues.append(inside[start:end])
        return {
            **packed(rows),
            WORD_TOKENS.name: Ragged.of(tokens),
            WORD_SPANS.name: Ragged.of(places),
            CONTINUES.name: Ragged.of(continues),
        }

    def _places(self, text: str, encoding: tokenizers.Encoding) -> Ints:
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return trimmed(offsets, text) if self._trims else offsets

    def _inside_words(self, text: str, encoding: tokenizers.Encoding) -> Ints:
        """Return 1 for each token that continues a word, as transformers decides: by prefixes such as ##, if there are.

        Without them, a token continues a word if there is no space before it, or at its start.
        """
        if getattr(self._tokenizer.model, "continuing_subword_prefix", None):
            inside = [
                len(token) != end - start for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
            ]
        else:
            inside = [start > 0 and " " not in text[start - 1 : start + 1] for start, _ in encoding.offsets]
        unknown = np.array(encoding.ids, np.int64) == (-1 if self._unknown is None else self._unknown)
        return np.where(unknown, 0, np.array(inside, np.int32)).astype(np.int32)


def trimmed(places: Ints, text: str) -> Ints:
    """Return places without white space at their ends; one of nothing else ends before its start.

    >>> trimmed(np.array([[0, 2], [2, 3], [3, 6]]), "a   b ").tolist()
    [[0, 1], [4, 1], [4, 5]]
    """
    letters = np.array([-1, *(i for i, letter in enumerate(text) if not letter.isspace()), len(text)], np.int32)
    starts, ends = places.T
    return np.stack([letters[np.searchsorted(letters, starts)], letters[np.searchsorted(letters, ends) - 1] + 1], 1)


def load_processor(spec: ModelSpec, directory: Path) -> PlacedTokens:
    return PlacedTokens.load(directory, spec.max_sequence_length)
