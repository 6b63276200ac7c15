"""Positions of the tokens of texts and images in Qwen's vision models: time, height and width."""

import numpy as np
import numpy.typing as npt

from sie_triton.arrays import Ints


def grid_positions(is_image: npt.NDArray[np.bool_], lengths: Ints, grids: Ints) -> Ints:
    """Return the positions of the tokens of packed items, int32 [3, tokens]; `lengths` int32 [items].

    `is_image`, bool [tokens], marks the tokens of images; those of one image are consecutive, row by row. `grids`,
    int32 [items, images, 2], holds the rows and columns of each image, 0 if an item has fewer images.

    >>> grid_positions(np.array([0, 1, 1, 1, 1, 1, 1, 0], bool), np.array([8]), np.array([[[2, 3]]])).tolist()
    [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]
    """
    places = np.empty((3, len(is_image)), np.int32)
    for end, length, of_item in zip(np.cumsum(lengths), lengths, grids, strict=True):
        item, seen = places[:, end - length : end], is_image[end - length : end]
        item[:] = np.arange(length)
        behind = 0
        for rows, columns in of_item[of_item[:, 0] > 0]:
            start = behind + int(seen[behind:].argmax())
            behind = start + rows * columns
            item[:, start:behind] = item[0, start]
            item[1:, start:behind] += np.indices((rows, columns), np.int32).reshape(2, -1)
            item[:, behind:] += max(rows, columns) - rows * columns
    return places
