"""Token classifiers with labels of their own: named entities, personal data, parts of speech.

text → windows of tokens with their places → label scores of each token → words → entities
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers

from sie_triton.checkpoints.architecture import TOKEN_CLASSIFIER, head
from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.checkpoints.files import has_file, read_fields
from sie_triton.checkpoints.modules import TextFiles, modules_of
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract import Entity, Extraction, Features, Findings, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PIECE, TOKEN_TYPE_IDS, WORD_LENGTHS, WORD_SPANS, WORD_TOKENS, Tensor
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.classes import CLASS_NAMES
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import least_score, threshold
from sie_triton.models.families.token_classification.aggregation import STRATEGIES, longest
from sie_triton.models.families.token_classification.constraints import CALIBRATION, Constraints
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.windows import WindowProcessor, packed, windows

CONTINUES = Tensor(
    "continues", "INT32", (-1,), "[tokens] 1: the token continues the word of the one before", WORD_LENGTHS.name, 0, 1
)

AGGREGATION = Parameter(
    "aggregation_strategy",
    str,
    STRATEGIES,
    doc="as in transformers: none: tokens; simple: neighbours of one label joined; first, average, max: one label a "
    "word; default: by viterbi_calibration.json, else simple",
)


def aggregation(options: Mapping[str, ParameterValue]) -> str:
    return str(options.get(AGGREGATION.name, "simple"))


def entities(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Merge the windows of a text. Of entities that overlap, the longest counts."""
    spans = np.concatenate([row[SPANS.name] for row in rows])
    scores = np.concatenate([row[SPAN_SCORES.name] for row in rows])
    names = json.loads(rows[0][CLASS_NAMES.name].tobytes())
    if len(rows) > 1:
        kept = longest(spans, scores)
        spans, scores = spans[kept], scores[kept]
    least = least_score(options, 0)
    found = zip(spans.tolist(), scores.tolist(), strict=True)
    return Findings([Entity(start, end, names[label], score) for (start, end, label), score in found if score >= least])


class TokenClassification(TextFamily):
    extraction = Extraction((SPANS, SPAN_SCORES, CLASS_NAMES), entities, "")
    features = (INPUT_IDS, TOKEN_TYPE_IDS, PIECE, WORD_TOKENS, WORD_SPANS, CONTINUES)
    parameters = (threshold(0), AGGREGATION)
    takes_loras = True
    reference_adapters = ("privacy_filter:PrivacyFilterAdapter",)
    files = (CALIBRATION,)

    def recognise(self, directory: Path) -> Recognised | None:
        modules = modules_of(directory)
        if len(modules) != 1 or head(read_fields(modules[0][1] / "config.json", required=False)) != TOKEN_CLASSIFIER:
            return None
        files = ClassifierFiles.read(directory)
        Constraints.read(directory, files.labels)
        shown = ", ".join(files.labels[:3]) + (" …" if len(files.labels) > 3 else "")
        reason = f"config.json: {files.name} with {len(files.labels)} labels of tokens: {shown}"
        weights = (files.text.transformer,)
        return Recognised(reason, files.text.max_sequence_length, {}, extracts=True, weights=weights)

    def sample(self, lengths: Sequence[int]) -> Features:
        tokens = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        return {**super().sample(lengths), WORD_TOKENS.name: Ragged(tokens, np.array(lengths, np.int32))}


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
