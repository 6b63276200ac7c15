"""Convert bytes of images that all have the size of a plan to normalised pixels."""

from typing import Any

import numpy.typing as npt
import torch

from sie_triton.checkpoints.image_processor import ImagePlan


class Pixels:
    """Conversion of bytes to normalised pixels. Every image has the height and width `shape`, and `image_bytes`."""

    def __init__(self, plan: ImagePlan, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = plan.shape
        self.image_bytes = 3 * plan.shape[0] * plan.shape[1]
        self._dtype = dtype
        mean, std = (torch.tensor(each, device=device)[:, None, None] for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std

    def __call__(self, pixels: npt.NDArray[Any]) -> torch.Tensor:
        """Return [images, 3, height, width] for integers [images · image_bytes], in the unit of the plan."""
        images = torch.from_numpy(pixels).to(self._scale.device).view(-1, *self.shape, 3).permute(0, 3, 1, 2)
        return (images.float() * self._scale - self._offset).to(self._dtype)
