"""Types of NumPy arrays. Imported by every room, the client's too."""

from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def item_lengths(items: Iterable[Sized]) -> Ints:
    """Return the length of each item, int32 [items]."""
    return np.array([len(item) for item in items], np.int32)
