"""Zero-shot classification by natural-language inference (Yin et al., 2019): does a text entail that it is of a label?

text and hypothesis of each label → classifier → contradiction and entailment → scores over the labels
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sie_triton.checkpoints.classifier import ClassifierFiles, is_classifier
from sie_triton.contract import Extraction, Features, Findings, Label, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, PIECE, TOKEN_TYPE_IDS, Tensor
from sie_triton.contract.transforms.classes import merged, softmax
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.classes import CLASS_LOGITS, IS_MULTI, THRESHOLD, ranked_classes
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.windows import WindowProcessor, num_windows, packed, windows

LABEL = Tensor("label", "INT32", (-1,), "[pieces] index of the label that the piece is read with", "", 0)

TEMPLATE = Parameter(
    "hypothesis_template",
    str,
    max_characters=4096,
    for_prompt=True,
    doc='hypothesis, with {} for the label; default "This example is {}."',
)


def classes(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Score labels like transformers' zero-shot-classification pipeline.

    The entailments of all labels share 1; with `multi_label`, and for a single label, entailment and contradiction of
    each label do. Classes are ordered by descending score, ties in the order of labels. The score of several windows is
    their mean, with `multi_label` their maximum.
    """
    labels = np.array([int(row[LABEL.name]) for row in rows])
    num_labels = int(labels.max()) + 1
    logits = np.stack([row[CLASS_LOGITS.name] for row in rows]).reshape(-1, num_labels, 2)
    thresholds = np.concatenate([row[LABEL_THRESHOLDS.name] for row in rows[:num_labels]])
    multi = bool(options.get(IS_MULTI.name, False))
    scores = softmax(logits)[..., 1] if multi or num_labels == 1 else softmax(logits[..., 1])
    return ranked_classes(range(num_labels), merged(scores, multi), options, thresholds)


class NliClassification(TextFamily):
    extraction = Extraction((CLASS_LOGITS, LABEL, LABEL_THRESHOLDS), classes, "required")
    features = (INPUT_IDS, TOKEN_TYPE_IDS, PIECE, LABEL, LABEL_THRESHOLDS)
    parameters = (THRESHOLD, IS_MULTI, TEMPLATE)
    takes_loras = True
    reference_adapters = (
        "nli_classification_flash:NLIClassificationFlashAdapter",
        "nli_classification:NLIClassificationAdapter",
    )

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_classifier(directory):
            return None
        files = ClassifierFiles.read(directory)
        if files.entailment is None:
            return None
        said = f"{files.labels[files.entailment]} and {files.labels[files.contradiction]}"
        reason = f"config.json: {files.name}, whose labels are {said}"
        weights = (files.text.transformer,)
        return Recognised(reason, files.text.max_sequence_length, {}, extracts=True, weights=weights)


def judgement(files: ClassifierFiles) -> tuple[int, int]:
    """Return the indices of contradiction and entailment; raise LoadError if config.json names no entailment."""
    if files.entailment is None:
        where, named = files.text.config.where, ", ".join(files.labels[:8])
        message = f"{where}: id2label: none of its labels begins with entail (its labels are {named})"
        raise LoadError(
            f"{message}; serve a classifier with labels of its own as a sequence_classification", "unsupported"
        )
    return files.contradiction, files.entailment


# Maximum pairs of a request, since all their rows are in memory at once.
MAX_PAIRS = 100_000


class Hypotheses(NamedTuple):
    """Hypotheses of labels: `ids` of each, `thresholds` float32 [labels], `longest` of them in tokens."""

    ids: list[Ints]
    thresholds: Any
    longest: int


class HypothesisTokenizer(WindowProcessor):
    """Tokenizer that cuts a text too long for the longest hypothesis into windows, the same for all labels."""

    pairs = True

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        template = str(part.options.get(TEMPLATE.name, "This example is {}."))
        if "{}" not in template:
            problem = f"must contain {{}} in place of the label (given {template[:80]!r})"
            raise InputError.at(f"parameter {TEMPLATE.name}", problem)
        labels, num_pairs = tuple(part.labels), len(part.elements) * len(part.labels)
        if num_pairs > MAX_PAIRS:
            raise InputError.at(
                "labels",
                f"{len(labels)} labels with {len(part.elements)} texts make {num_pairs} pairs; "
                f"at most {MAX_PAIRS} are allowed; send fewer labels, or fewer texts at a time",
            )
        size = sum(len(template) + len(label.read) for label in labels)
        return Prompted(lambda: self._hypotheses(template, labels), size)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = self._token_ids([text for _, text in framed])
        rows, labels, thresholds = [], [], []
        for (hypotheses, _), text in zip(framed, texts, strict=True):
            num_labels, room = len(hypotheses.ids), self._room - hypotheses.longest
            cuts = [text[a:b] for a, b in windows(len(text), room)] if self._check(text, hypotheses) else []
            rows += [
                self._around.row(number * num_labels + label, window, ids)
                for number, window in enumerate(cuts)
                for label, ids in enumerate(hypotheses.ids)
            ]
            labels += [np.arange(num_labels, dtype=np.int32)] * len(cuts)
            thresholds += [hypotheses.thresholds] * len(cuts)
        ones = np.ones(len(rows), np.int32)
        return {
            **packed(rows),
            LABEL.name: Ragged(np.concatenate(labels)),
            LABEL_THRESHOLDS.name: Ragged(np.concatenate(thresholds), ones),
        }

    def _hypotheses(self, template: str, labels: Sequence[Label]) -> Hypotheses:
        ids = self._token_ids([template.replace("{}", label.read) for label in labels])
        longest = max(map(len, ids))
        if longest > self._room // 2:
            label = labels[max(range(len(ids)), key=lambda i: len(ids[i]))].read
            raise InputError.at(
                "labels",
                f"the hypothesis of {label[:80]!r} has {longest} tokens; this model reads at most "
                f"{self._room // 2} with each text; send shorter labels",
            )
        return Hypotheses(ids, thresholds_of(labels), longest)

    def _check(self, text: Ints, hypotheses: Hypotheses) -> bool:
        num_rows = num_windows(len(text), self._room - hypotheses.longest) * len(hypotheses.ids)
        num_tokens = num_rows * min(self._room, len(text) + hypotheses.longest)
        if num_tokens > LIMITS.max_window_tokens:
            raise InputError.at(
                "text",
                f"{len(text)} tokens, read with each of {len(hypotheses.ids)} labels, make about "
                f"{num_tokens} tokens; at most {LIMITS.max_window_tokens} are allowed; "
                "send a shorter text, or fewer labels",
            )
        return True


def load_processor(spec: ModelSpec, directory: Path) -> HypothesisTokenizer:
    return HypothesisTokenizer.load(directory, spec.max_sequence_length)
