"""Parameters and findings of families that classify texts."""

import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Class, Findings, Parameter, ParameterValue, Rows
from sie_triton.contract.tensors import LABEL_THRESHOLDS, PIECE, Tensor
from sie_triton.contract.transforms.classes import Floats, merged, sigmoid, softmax
from sie_triton.models.families.shared.thresholds import least_scores, threshold

CLASS_LOGITS = Tensor("class_logits", "FP32", (-1,), "[classes]", "class_lengths")
SCORING = Tensor("scoring", "INT32", (-1,), "[pieces] how logits become scores: 0 softmax, 1 sigmoid, 2 unchanged")
CLASS_NAMES = Tensor(
    "class_names", "UINT8", (-1,), "[bytes] JSON list, in the first piece of each text", "name_lengths"
)


def names_of(classes: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return the names of classes as CLASS_NAMES has them."""
    return np.frombuffer(json.dumps(list(classes)).encode(), np.uint8)


def of_texts(names: npt.NDArray[np.uint8], batch: Batch) -> Rows:
    """Return CLASS_NAMES and their lengths for the pieces of a batch."""
    is_first = batch.features[PIECE.name].values == 0
    lengths = (len(names) * is_first).astype(np.int32)
    return {CLASS_NAMES.name: np.tile(names, int(is_first.sum())), CLASS_NAMES.lengths: lengths}


MULTI_LABEL = "multi-label"

# Values of SCORING.
SOFTMAX, SIGMOID, UNCHANGED = range(3)

THRESHOLD = threshold(0)
IS_MULTI = Parameter("multi_label", bool, doc="several classes may apply")
TYPE = Parameter(
    "classification_type",
    str,
    ("single-label", MULTI_LABEL),
    doc="multi-label if several classes may apply; multi_label overrides it",
)
RAW_SCORES = Parameter(
    "raw_scores",
    bool,
    doc="logits as scores, as of reward models; default: of regressions",
)

RANKED = Parameter("ranked", bool, doc="false: all classes, in the order of the labels")


def is_multi(options: Mapping[str, ParameterValue], usual: bool) -> bool:
    """Return whether several classes may apply; `usual` is the model's default if the request does not say."""
    if IS_MULTI.name in options:
        return bool(options[IS_MULTI.name])
    return options[TYPE.name] == MULTI_LABEL if TYPE.name in options else usual


def ranked_classes(
    labels: Sequence[int | str],
    scores: npt.NDArray[np.float64],
    options: Mapping[str, ParameterValue],
    thresholds: npt.NDArray[np.float32] | None = None,
    usual: float = 0,
) -> Findings:
    """Return classes by descending score, ties in the order of labels; with RANKED false all, in the order of labels.

    `thresholds` NaN are that of the request, `usual` if it sets none.
    """
    if not options.get(RANKED.name, True):
        return Findings(classifications=[Class(*each) for each in zip(labels, scores.tolist(), strict=True)])
    least = least_scores(np.full(len(labels), np.nan, np.float32) if thresholds is None else thresholds, options, usual)
    order = np.argsort(-scores, kind="stable")
    return Findings(
        classifications=[Class(labels[i], float(scores[i])) for i in order.tolist() if scores[i] >= least[i]]
    )


# By SCORING: logits [windows, classes] → scores.
SCORES: Mapping[int, Callable[[Floats], Floats]] = {
    SOFTMAX: softmax,
    SIGMOID: sigmoid,
    UNCHANGED: lambda logits: logits,
}


def classes(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Merge the windows of a text, each with logits of all classes.

    Classes are the request's labels or, with CLASS_NAMES, the model's.
    """
    scoring = int(rows[0][SCORING.name])
    (scores,) = scores_of(rows, ())
    if CLASS_NAMES.name in rows[0]:
        names = json.loads(rows[0][CLASS_NAMES.name].tobytes())
        return ranked_classes(names, scores, options, usual=-math.inf if scoring == UNCHANGED else 0)
    return ranked_classes(range(len(scores)), scores, options, rows[0][LABEL_THRESHOLDS.name])


def scores_of(rows: Sequence[Rows], ends: Sequence[int]) -> list[Floats]:
    """Return the scores of a text from those of its windows, [classes], for each group of classes; `ends` part them."""
    scoring = int(rows[0][SCORING.name])
    logits = np.stack([row[CLASS_LOGITS.name] for row in rows]).astype(np.float64)
    return [merged(SCORES[scoring](part), scoring == SIGMOID) for part in np.split(logits, ends, axis=1)]
