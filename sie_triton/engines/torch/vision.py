"""A transformers model of images as a function from bytes of pixels; images of one size go through it together."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.engines.torch.tower import Tower


class VisionTower(Tower):
    """It pads nothing: all images are as large as `plan` makes them."""

    def __init__(self, model: PreTrainedModel, plan: ImagePlan) -> None:
        super().__init__(model)
        self.image_bytes = 3 * plan.shape[0] * plan.shape[1]
        self._shape = plan.shape
        mean, std = (torch.tensor(each, device=self.device)[:, None, None] for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std

    @torch.inference_mode()
    def __call__(self, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.int16]) -> Any:
        """[images · image_bytes], in the unit of `plan` → what the model gives of all of them."""
        images = torch.from_numpy(pixels).to(self.device).view(-1, *self._shape, 3).permute(0, 3, 1, 2)
        return self._model(pixel_values=(images.float() * self._scale - self._offset).to(self.dtype))
