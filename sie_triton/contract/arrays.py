"""Types of NumPy arrays. Imported by every room, the client's too."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
