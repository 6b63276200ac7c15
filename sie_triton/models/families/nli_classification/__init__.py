"""Zero-shot classification by natural-language inference (Yin et al., 2019): does a text entail that it is of a label?

text and hypothesis of each label → classifier → contradiction and entailment → scores over the labels
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sie_triton.checkpoints.classifier import ClassifierFiles, is_classifier
from sie_triton.contract import Extraction, Findings, Parameter, ParameterValue, Rows
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, PIECE, TOKEN_TYPE_IDS, Tensor
from sie_triton.contract.transforms.classes import merged, softmax
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.shared.classes import CLASS_LOGITS, IS_MULTI, THRESHOLD, ranked_classes

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
