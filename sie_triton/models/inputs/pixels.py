"""Pictures → bytes of pixels, in the size that a model reads. No torch."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract import Ragged
from sie_triton.contract.tensors import IMAGE_SIZES, PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = npt.NDArray[np.uint8]

# Function from a picture to what the processor encodes: uint8 [height, width, 3], or tiles.
Resize = Callable[["Image"], Any]


def resized(image: "Image", plan: ImagePlan) -> Bytes:
    """Resize and crop a picture as transformers' processors with the Pillow backend do, bit for bit."""
    height, width = plan.resizing.size(image.height, image.width)
    pixels = np.asarray(image.resize((width, height), resample=plan.resample))
    return pixels if plan.crop is None else middle(pixels, plan.crop, rounds=plan.rounds_middle)


def middle(pixels: Bytes, size: tuple[int, int], *, rounds: bool = False) -> Bytes:
    """Crop the middle of [height, width, 3], with a black border if it is smaller; `rounds`: see ImagePlan."""
    for axis, wanted in enumerate(size):
        around_it = pixels.shape[axis] - wanted
        before = round(around_it / 2) if rounds else around_it // 2
        if before < 0:
            missing = wanted - pixels.shape[axis]
            around = [(0, 0)] * 3
            around[axis] = (-(-missing // 2), missing // 2)
            pixels = np.pad(pixels, around)
        else:
            pixels = pixels.take(range(before, before + wanted), axis)
    return pixels


def packed_pixels(images: Sequence[Bytes | None]) -> dict[str, Ragged]:
    """Pack the images of items; None: the item has no image."""
    lengths = np.array([0 if image is None else image.size for image in images], np.int32)
    sizes = np.array([(0, 0) if image is None else image.shape[:2] for image in images], np.int32)
    flat = [image.reshape(-1) for image in images if image is not None]
    return {
        PIXELS.name: Ragged(np.concatenate(flat) if flat else np.empty(0, np.uint8), lengths),
        IMAGE_SIZES.name: Ragged(sizes),
    }
