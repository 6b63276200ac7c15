"""A transformers model of images as a function from bytes of pixels; images of one size go through it together."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.engines.torch.allocator import keep_freed_pages
from sie_triton.engines.torch.encoder import library_attention, num_bytes, own_pages
from sie_triton.engines.torch.prepack import can_prepack, prepack


class VisionTower:
    """Runs `model` on the device its weights are on. It pads nothing: all images are as large as `plan` makes them."""

    def __init__(self, model: PreTrainedModel, plan: ImagePlan) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self.image_bytes = 3 * plan.shape[0] * plan.shape[1]
        self._model, self._shape = model, plan.shape
        mean, std = (torch.tensor(each, device=self.device)[:, None, None] for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std

    def prepare(self) -> None:
        """Lay the weights out for speed."""
        if can_prepack(next(self._model.parameters())):
            prepack(self._model)
            keep_freed_pages()
        if self.device.type == "cpu":
            own_pages(self._model)
        self._model.set_attn_implementation(library_attention(self._model))

    @torch.inference_mode()
    def __call__(self, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.int16]) -> Any:
        """[images · image_bytes], in the unit of `plan` → what the model gives of all of them."""
        images = torch.from_numpy(pixels).to(self.device).view(-1, *self._shape, 3).permute(0, 3, 1, 2)
        return self._model(pixel_values=(images.float() * self._scale - self._offset).to(self.dtype))
