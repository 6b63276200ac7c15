"""A transformers vision model as a function of pixels. All images have one size and are batched."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.attention import Segments
from sie_triton.engines.torch.attention_pooling import AttentionPooling
from sie_triton.engines.torch.pixels import Pixels
from sie_triton.engines.torch.tower import Tower


class VisionTower(Tower):
    """Vision model without padding, as all images have the size of `plan`."""

    def __init__(self, model: PreTrainedModel, plan: ImagePlan) -> None:
        super().__init__(model)
        self._pixels = Pixels(plan, self.device, self.dtype)
        self.image_bytes = self._pixels.image_bytes

    def takes(self, lengths: Ints, shapes: Ints) -> bool:
        """Return whether sizes in bytes, and heights and widths in pixels, are those of images made by `plan`."""
        return bool((lengths == self.image_bytes).all() and (shapes == self.largest).all())

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        return self._pixels.shape

    @torch.inference_mode()
    def __call__(self, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.int16]) -> Any:
        """Return the model's outputs for all images; `pixels` is [images · image_bytes], in the unit of `plan`."""
        return self._model(pixel_values=self._pixels(pixels))


class PooledVisionTower(VisionTower):
    """Vision model whose last layer is attention pooling (SigLIP)."""

    def __init__(self, model: PreTrainedModel, plan: ImagePlan) -> None:
        super().__init__(model, plan)
        pooled: Any = model
        pooled.head, pooled.use_head = AttentionPooling(pooled.head), False
        self._head = pooled.head

    @torch.inference_mode()
    def vectors(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Return one vector per image, [images, d], for uint8 pixels [images · image_bytes]."""
        states = self(pixels).last_hidden_state
        vectors: torch.Tensor = self._head(states.flatten(0, 1), Segments.of([states.shape[1]] * len(states)))
        return vectors
