"""Classifiers with labels of their own: sentiment, topics, emotions, rewards. Requests have no labels.

text → classifier → logits of its labels → scores
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.classifier import PROBLEMS, REGRESSION, ClassifierFiles, is_classifier
from sie_triton.contract import Extraction, Features, ParameterValue
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PIECE, TOKEN_TYPE_IDS
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.classes import (
    CLASS_LOGITS,
    CLASS_NAMES,
    IS_MULTI,
    RANKED,
    RAW_SCORES,
    SCORING,
    THRESHOLD,
    TYPE,
    UNCHANGED,
    classes,
    is_multi,
)
from sie_triton.models.inputs.windows import WindowProcessor, packed, windows


def scoring(options: Mapping[str, ParameterValue], files: ClassifierFiles) -> int:
    """Return the value of SCORING for a request, by default as transformers' pipeline scores."""
    if options.get(RAW_SCORES.name, files.problem_type == REGRESSION):
        return UNCHANGED
    return int(is_multi(options, files.is_multi_label))


class SequenceClassification(TextFamily):
    extraction = Extraction((CLASS_LOGITS, SCORING, CLASS_NAMES), classes, "")
    features = (INPUT_IDS, TOKEN_TYPE_IDS, PIECE)
    parameters = (THRESHOLD, IS_MULTI, TYPE, RAW_SCORES, RANKED)
    takes_loras = True
    reference_adapters = ("sequence_classification:SequenceClassificationAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_classifier(directory):
            return None
        files = ClassifierFiles.read(directory)
        check_problem(files)
        shown = ", ".join(files.labels[:3]) + (" …" if len(files.labels) > 3 else "")
        reason = f"config.json: {files.name} with {len(files.labels)} labels: {shown}"
        weights = (files.text.transformer,)
        return Recognised(reason, files.text.max_sequence_length, {}, extracts=True, weights=weights)


def check_problem(files: ClassifierFiles) -> None:
    if files.problem_type not in ("", *PROBLEMS):
        message = f"problem_type {files.problem_type} cannot be served"
        raise files.text.config.unserved(f"{message}; supported are {', '.join(PROBLEMS)}")


class WindowTokenizer(WindowProcessor):
    """Tokenizer that cuts a text longer than the model reads into overlapping windows."""

    pairs = False

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return packed(
            [
                self._around.row(number, text[start:end])
                for text in self._token_ids(framed)
                for number, (start, end) in enumerate(windows(len(text), self._room))
            ]
        )


def load_processor(spec: ModelSpec, directory: Path) -> WindowTokenizer:
    return WindowTokenizer.load(directory, spec.max_sequence_length)
