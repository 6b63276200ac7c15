"""Token classifiers with labels of their own: named entities, personal data, parts of speech.

text → windows of tokens with their places → label scores of each token → words → entities
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sie_triton.checkpoints.architecture import TOKEN_CLASSIFIER, head
from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.contract import Entity, Extraction, Features, Findings, Parameter, ParameterValue, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, PIECE, TOKEN_TYPE_IDS, WORD_LENGTHS, WORD_SPANS, WORD_TOKENS, Tensor
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.classes import CLASS_NAMES
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import least_score, threshold
from sie_triton.models.families.token_classification.aggregation import STRATEGIES, longest
from sie_triton.models.families.token_classification.constraints import CALIBRATION, Constraints

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
