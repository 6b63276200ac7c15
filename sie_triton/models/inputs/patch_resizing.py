"""Pictures → bytes of pixels in whole patches, close to their own resolution. No torch."""

from math import ceil, floor, sqrt
from typing import TYPE_CHECKING

import numpy as np

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.models.inputs.pixels import Bytes

if TYPE_CHECKING:
    from PIL.Image import Image


def resized_for_patches(image: "Image", plan: PatchPlan) -> Bytes:
    """Resize a picture as transformers' processor of Qwen2-VL with the Pillow backend does, bit for bit."""
    return resized_to(image, patched_size(image.height, image.width, plan), plan.resample)


def resized_to(image: "Image", size: tuple[int, int], resample: int) -> Bytes:
    """Resize a picture to `size`: height and width."""
    return np.asarray(image.resize(size[::-1], resample=resample))


def patched_size(height: int, width: int, plan: PatchPlan, counted: int = 1) -> tuple[int, int]:
    """Return height and width as multiples of the plan's factor, within its limits, nearly in the same ratio.

    `counted`: how often each pixel counts towards the limits.
    """
    factor = plan.factor
    rounded = (round(height / factor) * factor, round(width / factor) * factor)
    if counted * rounded[0] * rounded[1] > plan.max_pixels:
        shrunk = sqrt(counted * height * width / plan.max_pixels)
        return max(factor, floor(height / shrunk / factor) * factor), max(
            factor, floor(width / shrunk / factor) * factor
        )
    if counted * rounded[0] * rounded[1] < plan.min_pixels:
        grown = sqrt(plan.min_pixels / (counted * height * width))
        return ceil(height * grown / factor) * factor, ceil(width * grown / factor) * factor
    return rounded
