"""GLiNER: entities of any kind that a label names (Zaratiana et al., 2023).

labels and words → encoder → [LSTM] → spans or tokens × labels → entities
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from sie_triton.checkpoints.gliner import GlinerFiles, is_gliner, other_repositories
from sie_triton.contract import Entity, Extraction, Features, Findings, Label, Parameter, ParameterValue, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import (
    INPUT_IDS,
    LABEL_THRESHOLDS,
    LABEL_TOKENS,
    PIECE,
    WORD_SPANS,
    WORD_TOKENS,
    Tensor,
)
from sie_triton.contract.transforms.spans import chosen, merged_adjacent
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.labels.words import marked, sample_words
from sie_triton.models.families.shared.thresholds import THRESHOLD
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import LabelledWords, Pieces, WordsPrompt, WordTokenizer

FLAT_NER = Parameter("flat_ner", bool, doc="entities must not overlap; default true")
MULTI_LABEL = Parameter("multi_label", bool, doc="the same words may have several labels; default false")
MERGE_ADJACENT = Parameter(
    "merge_adjacent_entities", bool, doc="merge adjacent entities of the same label, as NuNER Zero requires"
)


def entities(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Merge the pieces of a text; entities found in two pieces are returned once."""
    spans = np.concatenate([row[SPANS.name] for row in rows])
    scores = np.concatenate([row[SPAN_SCORES.name] for row in rows])
    if len(rows) > 1:
        kept = chosen(spans, scores, **choice(options), most=None)
        spans, scores = spans[kept], scores[kept]
    if options.get(MERGE_ADJACENT.name, False):
        spans, scores = merged_adjacent(spans, scores)
    found = zip(spans.tolist(), scores.tolist(), strict=True)
    return Findings([Entity(start, end, label, score) for (start, end, label), score in found])


def choice(options: Mapping[str, ParameterValue]) -> dict[str, bool]:
    """Return the arguments for transforms.spans.chosen."""
    return {
        "flat": bool(options.get(FLAT_NER.name, True)),
        "multi_label": bool(options.get(MULTI_LABEL.name, False)),
    }


# Maximum tokens of the labels, which are read with each piece of a text.
MAX_PROMPT = 1024


class Gliner(Family):
    extraction = Extraction((SPANS, SPAN_SCORES), entities, "required")
    features: ClassVar[tuple[Tensor, ...]] = (INPUT_IDS, PIECE, WORD_TOKENS, WORD_SPANS, LABEL_TOKENS, LABEL_THRESHOLDS)
    parameters = (THRESHOLD, FLAT_NER, MULTI_LABEL, MERGE_ADJACENT)
    takes_loras = True
    reference_adapters = ("gliner:GLiNERAdapter",)
    files: ClassVar[tuple[str, ...]] = ("gliner_config.json", "encoder/*.json", "encoder/*.model")

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_gliner(directory):
            return None
        files = GlinerFiles.read(directory)
        if files.is_bi_encoder:
            return None
        reason = f"gliner_config.json: {files.span_mode} over {files.architecture}"
        return Recognised(reason, self.longest(directory), {}, extracts=True, weights=files.complete)

    def other_repositories(self, directory: Path) -> Mapping[str, str]:
        return other_repositories(directory)

    def longest(self, directory: Path) -> int:
        return GlinerFiles.read(directory).longest(MAX_PROMPT)

    def sample(self, lengths: Sequence[int]) -> Features:
        return sample_words(lengths)


# Number of words that two neighbouring pieces share; at least the maximum width of an entity.
OVERLAP = 48


class GlinerTokenizer(LabelledWords):
    """Tokenizer for rows of the form: marker label marker label … separator word word …"""

    def __init__(self, files: GlinerFiles, max_length: int, max_prompt: int) -> None:
        longest = min(max_length, files.longest(max_prompt))
        pieces = Pieces(files.max_words, longest, max(OVERLAP, files.max_width))
        tokenizer, by_last_token = open_tokenizer(files.tokenizer), files.uses_last_token
        if tokenizer.token_to_id(files.marker) is None:
            # Older versions of gliner saved these tokens only in the weights, after one that is unused.
            tokenizer.add_special_tokens(["[FLERT]", files.marker, files.separator])
        super().__init__(tokenizer, pieces, min(max_prompt, longest // 2), by_last_token=by_last_token)
        self._files = files

    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        return marked(labels, words, self._files.marker, self._files.separator, self._files.label_offset)


def load_processor(spec: ModelSpec, directory: Path) -> GlinerTokenizer:
    return GlinerTokenizer(GlinerFiles.read(directory), spec.max_sequence_length, MAX_PROMPT)
