"""Cost of items: integers in units of about one token's forward pass."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int32]


def token_cost(lengths: Lengths) -> npt.NDArray[np.int64]:
    """Return the length as cost: 1 per token.

    >>> token_cost(np.array([3, 512], np.int32)).tolist()
    [3, 512]
    """
    return lengths.astype(np.int64)


def attention_cost(lengths: Lengths) -> npt.NDArray[np.int64]:
    """Return length² / 512, rounded up: twice the length costs four times as much.

    >>> attention_cost(np.array([256, 512], np.int32)).tolist()
    [128, 512]
    """
    return -(-(lengths.astype(np.int64) ** 2) // 512)


COST_FUNCTIONS: Mapping[str, Callable[[Lengths], npt.NDArray[np.int64]]] = {
    "tokens": token_cost,
    "attention": attention_cost,
}
