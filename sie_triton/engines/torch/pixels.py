"""Bytes of images as large as a plan makes them → numbers as a model reads them."""

from typing import Any

import numpy.typing as npt
import torch

from sie_triton.checkpoints.image_processor import ImagePlan


class Pixels:
    """`shape`: height and width of every image, of `image_bytes`."""

    def __init__(self, plan: ImagePlan, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = plan.shape
        self.image_bytes = 3 * plan.shape[0] * plan.shape[1]
        self._dtype = dtype
        mean, std = (torch.tensor(each, device=device)[:, None, None] for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std

    def __call__(self, pixels: npt.NDArray[Any]) -> torch.Tensor:
        """Integers [images · image_bytes], in the unit of the plan → [images, 3, height, width]."""
        images = torch.from_numpy(pixels).to(self._scale.device).view(-1, *self.shape, 3).permute(0, 3, 1, 2)
        return (images.float() * self._scale - self._offset).to(self._dtype)
