"""Runs of tokens of one kind → spans of the text."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def best_by_number(numbers: Ints, scores: npt.NDArray[np.float32]) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Return the index of the first occurrence of each number, in ascending order of numbers, and its best score.

    >>> best_by_number(np.array([0, 1, 1, 2]), np.array([0.1, 0.2, 0.7, 0.3], np.float32))[0].tolist()
    [0, 1, 3]
    """
    found, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    best = np.full(len(found), -np.inf, np.float32)
    np.maximum.at(best, which, scores)
    return first, best


def runs(spans: Ints, kinds: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return start and end of each run of tokens of one kind, with at most one character between neighbours.

    >>> runs(np.array([[0, 3], [4, 7], [9, 12], [12, 14]]), [1, 1, 1, 2])
    [(0, 2), (2, 3), (3, 4)]
    """
    if not len(spans):
        return []
    ends = np.maximum.accumulate(spans[:, 1])
    apart = spans[1:, 0] > ends[:-1] + 1
    cuts = np.flatnonzero(apart | (np.diff(np.asarray(kinds)) != 0)) + 1
    return list(pairwise([0, *cuts.tolist(), len(spans)]))
