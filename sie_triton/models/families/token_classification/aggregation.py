"""Label scores of tokens → entities, as by transformers' token-classification pipeline. No torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats, Ints

STRATEGIES = ("none", "simple", "first", "average", "max")

# Label of tokens that are no part of an entity.
OUTSIDE = "O"


class TokenLabels(NamedTuple):
    """Labels in the order of the scores."""

    names: npt.NDArray[np.object_]  # the labels, then the name of an entity that begins with each: PER for B-PER
    begins: npt.NDArray[np.bool_]  # [labels] True if the label begins an entity
    kinds: npt.NDArray[np.intp]  # [labels] equal for labels that continue each other

    @classmethod
    def of(cls, labels: Sequence[str]) -> "TokenLabels":
        names = [*labels, *(label.split("-", 1)[-1] for label in labels)]
        bare = [label[2:] if label.startswith(("B-", "I-")) else label for label in labels]
        begins = np.array([label.startswith("B-") for label in labels])
        return cls(np.array(names, np.object_), begins, np.unique(bare, return_inverse=True)[1])


def entities_of(
    scores: Floats, places: Ints, continues: Ints, labels: TokenLabels, strategy: str
) -> tuple[Ints, Floats]:
    """Return the entities of a window: int32 [entities, 3] of start, end and index in `labels.names`, and their scores.

    `scores` [tokens, labels] are probabilities, `places` [tokens, 2] starts and ends in the text.
    """
    if not len(scores):
        return np.empty((0, 3), np.int32), np.empty(0, np.float32)
    if strategy in ("first", "average", "max"):
        scores, places = words(scores, places, continues, strategy)
    best, score = scores.argmax(1), scores.max(1)
    if strategy != "none":
        starts = np.flatnonzero(labels.begins[best] | (np.diff(labels.kinds[best], prepend=-1) != 0))
        score, places = means(score, starts), joined(places, starts)
        best = best[starts] + len(labels.begins)
    kept = labels.names[best] != OUTSIDE
    return np.column_stack([places, best]).astype(np.int32)[kept], score[kept]


def words(scores: Floats, places: Ints, continues: Ints, strategy: str) -> tuple[Floats, Ints]:
    """Join the tokens of each word: its scores are those of its first token, of the surest one, or the average."""
    starts = np.flatnonzero(np.append([True], continues[1:] == 0))
    if strategy == "average":
        of_words = means(scores, starts)
    elif strategy == "max":
        surest = scores.max(1)
        lengths = np.diff(starts, append=len(scores))
        at = np.flatnonzero(surest == np.repeat(np.maximum.reduceat(surest, starts), lengths))
        of_words = scores[at[np.searchsorted(at, starts)]]
    else:
        of_words = scores[starts]
    return of_words, joined(places, starts)


def means(values: Floats, starts: npt.NDArray[np.intp]) -> Floats:
    """Return the mean of each group of rows; `starts` are the indices of their first ones."""
    lengths = np.diff(starts, append=len(values)).astype(np.float32)
    means: Floats = np.add.reduceat(values, starts) / lengths.reshape(-1, *[1] * (values.ndim - 1))
    return means


def joined(places: Ints, starts: npt.NDArray[np.intp]) -> Ints:
    """Return the place of each group: the start of its first row, the end of its last."""
    ends = np.append(starts[1:], len(places)) - 1
    return np.stack([places[starts, 0], places[ends, 1]], 1)


def longest(entities: Ints, scores: Floats) -> list[int]:
    """Return the indices of entities by their starts; of those that overlap, the longest, of equals the surest.

    >>> longest(np.array([[9, 12, 0], [0, 4, 0], [2, 8, 0]]), np.array([0.5, 0.9, 0.1]))
    [2, 0]
    """
    kept: list[int] = []
    for i in np.argsort(entities[:, 0], kind="stable").tolist():
        if not kept or entities[i, 0] >= entities[kept[-1], 1]:
            kept.append(i)
        elif (entities[i, 1] - entities[i, 0], scores[i]) > (np.diff(entities[kept[-1], :2])[0], scores[kept[-1]]):
            kept[-1] = i
    return kept
