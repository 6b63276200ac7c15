"""Pictures → square tiles, as Idefics3 reads them. No torch."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.models.inputs.pixels import Bytes

if TYPE_CHECKING:
    from PIL.Image import Image


class Tiles(NamedTuple):
    """Tiles of an image."""

    pixels: Bytes  # [tiles, side, side, 3], row by row, and last a smaller copy of the image
    rows: int  # of tiles; 0: one tile, and no copy


def tiled(image: "Image", plan: TilePlan) -> Tiles:
    """Resize and cut a picture as transformers' processor with the Pillow backend does, bit for bit."""
    side, resample = plan.side, plan.tile.resample
    for height, width in plan.sizes(image.height, image.width):
        image = image.resize((width, height), resample=resample)
    pixels = np.asarray(image)
    if image.height == image.width == side:
        return Tiles(pixels[None], 0)
    rows = image.height // side
    tiles = pixels.reshape(rows, side, -1, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    copy = np.asarray(image.resize((side, side), resample=resample))
    return Tiles(np.concatenate([tiles, copy[None]]), rows)
