"""Label scores of tokens → entities, by the likeliest path of labels that begin and end entities. No torch.

Labels are O, and B-X, I-X, E-X and S-X of each kind X: beginning, inside, end, or single token of an entity. A
calibration adds a bias to each kind of step from label to label. This is the decoding of OpenAI's privacy filter.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.errors import LoadError
from sie_triton.models.families.token_classification.aggregation import OUTSIDE

CALIBRATION = "viterbi_calibration.json"

BEGIN, INSIDE, END, SINGLE = MARKS = ("B", "I", "E", "S")

# Bias in the calibration → marks before and after the steps that it is added to.
STEPS = {
    "transition_bias_background_stay": (OUTSIDE, OUTSIDE),
    "transition_bias_background_to_start": (OUTSIDE, BEGIN + SINGLE),
    "transition_bias_inside_to_continue": (BEGIN + INSIDE, INSIDE),
    "transition_bias_inside_to_end": (BEGIN + INSIDE, END),
    "transition_bias_end_to_background": (END + SINGLE, OUTSIDE),
    "transition_bias_end_to_start": (END + SINGLE, BEGIN + SINGLE),
}


class Constraints(NamedTuple):
    """Steps from token to token, in the order of the labels."""

    into: npt.NDArray[np.float64]  # [labels, labels] bias of the step into a label (row) from another; -inf forbids it
    begins: npt.NDArray[np.bool_]  # [labels] True for the first label of an entity
    ends: npt.NDArray[np.bool_]  # [labels] True for the last label of an entity
    outside: int  # index of O

    @classmethod
    def read(cls, directory: Path, labels: Sequence[str]) -> "Constraints | None":
        """Read the calibration; None without one. LoadError if its biases or the labels are others than these."""
        if not has_file(directory / CALIBRATION):
            return None
        saved = read_fields(directory / CALIBRATION)
        _check_labels(labels, saved.where)
        return cls.of(labels, _biases(saved.fields("operating_points").fields("default").fields("biases")))

    @classmethod
    def of(cls, labels: Sequence[str], biases: Mapping[str, float]) -> "Constraints":
        marks, kinds = zip(*(label.partition("-")[::2] for label in labels), strict=True)
        into = np.full((len(labels), len(labels)), -np.inf)
        for name, (before, after) in STEPS.items():
            steps = np.outer(_among(marks, after), _among(marks, before))
            if after in (INSIDE, END):
                steps &= np.equal.outer(kinds, kinds)
            into[steps] = biases[name]
        return cls(into, _among(marks, BEGIN + SINGLE), _among(marks, END + SINGLE), marks.index(OUTSIDE))

    def entities(self, scores: Floats, places: Ints) -> tuple[Ints, Floats]:
        """Return the entities of a window as `entities_of` does; `scores` are logarithms of probabilities.

        The score of an entity is the mean probability of its tokens' labels.
        """
        if not len(scores):
            return np.empty((0, 3), np.int32), np.empty(0, np.float32)
        path = self.path(scores)
        starts, ends = np.flatnonzero(self.begins[path]), np.flatnonzero(self.ends[path]) + 1
        sums = np.append(0, np.cumsum(np.exp(scores[np.arange(len(path)), path], dtype=np.float64)))
        score = ((sums[ends] - sums[starts]) / (ends - starts)).astype(np.float32)
        found = np.column_stack([places[starts, 0], places[ends - 1, 1], path[starts] + len(self.begins)])
        kept = found[:, 0] < found[:, 1]
        return found[kept].astype(np.int32), score[kept]

    def path(self, scores: Floats) -> Ints:
        """Return the label of each token on the path with the largest sum of scores and biases (Viterbi, 1967)."""
        labels = np.arange(len(self.into))
        outside = labels == self.outside
        came_from = np.empty(scores.shape, np.int32)
        best = np.where(self.begins | outside, scores[0], -np.inf)
        for i in range(1, len(scores)):
            reached = self.into + best
            came_from[i] = reached.argmax(1)
            best = reached[labels, came_from[i]] + scores[i]
        path = np.empty(len(scores), np.int32)
        path[-1] = np.where(self.ends | outside, best, -np.inf).argmax()
        for i in range(len(scores) - 1, 0, -1):
            path[i - 1] = came_from[i, path[i]]
        return path


def _among(marks: Sequence[str], wanted: str) -> npt.NDArray[np.bool_]:
    return np.array([mark in wanted for mark in marks])


def _check_labels(labels: Sequence[str], where: str) -> None:
    kinds = {label.partition("-")[2] for label in labels} - {""}
    if sorted(labels) != sorted([OUTSIDE, *(f"{mark}-{kind}" for kind in kinds for mark in MARKS)]):
        message = f"{where}: needs a model whose labels are O, and B-, I-, E- and S- of each kind"
        raise LoadError(message, "unsupported")


def _biases(given: Fields) -> Mapping[str, float]:
    """Return the biases of a calibration; LoadError if there are others than these, or one is no number."""
    if set(given.values) != set(STEPS):
        raise LoadError(f"{given.where}: must have the keys {', '.join(STEPS)}", "unsupported")
    return {name: given.number(name) for name in STEPS}
