"""Encoders within a model, run with transformers' own code. All inputs of a batch have one size."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.attention import Segments
from sie_triton.engines.torch.attention.library import library_attention
from sie_triton.engines.torch.attention_pooling import AttentionPooling
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.prepack import lay_out


class Tower:
    """A transformers model on the device of its weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self._model = model

    def prepare(self, attention_backend: str = "auto") -> None:
        """Repack the weights for speed. Raise LoadError if the model does not support the attention backend."""
        lay_out(self._model)
        self._model.set_attn_implementation(library_attention(self._model, attention_backend))


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
