"""Class logits → scores, and the scores of a text's windows → those of the text."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def softmax(logits: npt.ArrayLike) -> Floats:
    """Compute the softmax over the last dimension.

    >>> softmax([[0.0, 0.0], [1000.0, 0.0]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    given: Floats = np.asarray(logits, np.float64)
    powers: Floats = np.exp(given - given.max(-1, keepdims=True))
    whole: Floats = powers / powers.sum(-1, keepdims=True)
    return whole


def sigmoid(logits: npt.ArrayLike) -> Floats:
    """
    >>> sigmoid([0.0, -1000.0]).tolist()
    [0.5, 0.0]
    """
    given: Floats = np.asarray(logits, np.float64)
    halves: Floats = 0.5 * (1 + np.tanh(given / 2))
    return halves


def merged(scores: npt.ArrayLike, is_multi_label: bool) -> Floats:
    """Merge the scores of windows, [windows, classes] → [classes]: the maximum for `is_multi_label`, else the mean.

    The mean of distributions is a distribution.

    >>> scores = [[0.75, 0.25], [0.25, 0.75]]
    >>> merged(scores, False).tolist(), merged(scores, True).tolist()
    ([0.5, 0.5], [0.75, 0.75])
    """
    given: Floats = np.asarray(scores, np.float64)
    whole: Floats = given.max(0) if is_multi_label else given.mean(0)
    return whole
