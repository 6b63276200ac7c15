"""OWLv2's resizing: a Gaussian blur when shrinking, then interpolation between neighbours.

transformers uses scipy for both, on the whole square. Both only add up weighted pixels of a line, so one band of
weights for each axis gives the same result, and the black padding costs nothing.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats

# Number of lines computed at once, from the lines of the image that they need.
LINES = 32


def in_square(pixels: npt.NDArray[np.uint8], size: tuple[int, int]) -> Floats:
    """Resize the image, in the upper left corner of a black square: uint8 [height, width, 3] → [*size, 3]."""
    height, width, _ = pixels.shape
    side = max(height, width)
    lines = resampled(pixels.reshape(height, width * 3), side, size[0])
    columns = np.ascontiguousarray(lines.reshape(-1, width, 3).transpose(1, 0, 2)).reshape(width, -1)
    found = resampled(columns, side, size[1])
    return found.reshape(size[1], size[0], 3).transpose(1, 0, 2)


def resampled(lines: npt.NDArray[np.uint8] | Floats, side: int, size: int) -> Floats:
    """Resize `side` lines, of which those after the first n are zero: [n, k] → [size, k]."""
    made = np.zeros((size, lines.shape[1]), np.float32)
    places, weights = bands(side, size)
    for block in blocks(size):
        rows, of_rows = places[block], weights[block] * (places[block] < len(lines))
        if not of_rows.any():
            continue
        first, end = int(rows.min()), min(int(rows.max()) + 1, len(lines))
        dense = np.zeros((len(rows), int(rows.max()) + 1 - first), np.float32)
        np.add.at(dense, (np.arange(len(rows))[:, None], rows - first), of_rows)
        made[block] = dense[:, : end - first] @ lines[first:end].astype(np.float32, copy=False)
    return made


def bands(side: int, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return, for each of `size` lines, the source lines and their weights; both [size, lines]."""
    factor = side / size
    gaussian = bell(max(0.0, (factor - 1) / 2))
    reach = len(gaussian) // 2
    middles = (np.arange(size) + 0.5) * factor - 0.5
    before = np.floor(middles).astype(np.int64)
    share = (middles - before)[:, None]
    weights = np.pad((1 - share) * gaussian, ((0, 0), (0, 1))) + np.pad(share * gaussian, ((0, 0), (1, 0)))
    return mirrored(before[:, None] + np.arange(-reach, reach + 2), side), weights


def bell(deviation: float) -> npt.NDArray[np.float64]:
    """Return the weights of a Gaussian.

    >>> bell(0.0).tolist(), len(bell(1.0))
    ([1.0], 9)
    """
    reach = int(4.0 * deviation + 0.5)  # scipy's limit of a Gaussian, in standard deviations
    places = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (places / max(deviation, 1e-15)) ** 2)
    found: npt.NDArray[np.float64] = weights / weights.sum()
    return found


def mirrored(places: npt.NDArray[np.int64], side: int) -> npt.NDArray[np.int64]:
    """Reflect positions beyond an edge; the line at the edge is not repeated.

    >>> mirrored(np.arange(-3, 6), 3).tolist(), mirrored(np.arange(-1, 2), 1).tolist()
    ([1, 2, 1, 0, 1, 2, 1, 0, 1], [0, 0, 0])
    """
    if side == 1:
        return np.zeros_like(places)
    period = 2 * (side - 1)
    within = places % period
    return np.minimum(within, period - within)


def blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + LINES, size)) for start in range(0, size, LINES))
