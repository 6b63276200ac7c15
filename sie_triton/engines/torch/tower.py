"""Encoders within a model, run with transformers' own code."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.attention.library import library_attention
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

    def vectors(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Return one vector per image, [images, d], of a model that pools its states; all `shapes` are the plan's."""
        vectors: torch.Tensor = self(pixels).pooler_output
        return vectors


class NaflexTower(Tower):
    """The vision model of SigLIP 2, for images of any shape: each is a row of patches, padded to the longest row.

    `image_bytes` is the size of the largest image.
    """

    def __init__(self, model: PreTrainedModel, plan: NaflexPlan) -> None:
        super().__init__(model)
        self._plan, self._side = plan, plan.patch_size
        self._patch_bytes = 3 * self._side**2
        self.image_bytes = plan.max_num_patches * self._patch_bytes
        mean, std = (torch.tensor(each, device=self.device).repeat(self._side**2) for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std

    def takes(self, lengths: Ints, shapes: Ints) -> bool:
        """Return whether sizes in bytes, and heights and widths in pixels, are those of images made by `plan`."""
        patches = shapes // self._side
        whole = (shapes == patches * self._side).all() and (patches > 0).all()
        num_patches = patches[:, 0].astype(np.int64) * patches[:, 1]
        fits = (patches <= self._plan.max_num_patches).all() and (num_patches <= self._plan.max_num_patches).all()
        return bool(whole and fits and (lengths == num_patches * self._patch_bytes).all())

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width, in pixels, of a square image with about the maximum number of patches."""
        return self._plan.shape(1, 1)

    @torch.inference_mode()
    def vectors(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Return one vector per image, [images, d].

        `pixels` is uint8 [bytes], `shapes` int32 [images, 2]: height and width in pixels.
        """
        grids = torch.from_numpy(shapes // self._side)
        images = torch.split(torch.from_numpy(pixels).to(self.device), (3 * shapes.prod(1, dtype=np.int64)).tolist())
        rows = [self._patches(image, *grid) for image, grid in zip(images, grids.tolist(), strict=True)]
        vectors: torch.Tensor = self._model(
            pixel_values=pad_sequence(rows, batch_first=True),
            pixel_attention_mask=pad_sequence([row.new_ones(len(row), dtype=torch.long) for row in rows], True),
            spatial_shapes=grids,
        ).pooler_output
        return vectors

    def _patches(self, image: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Return the normalised patches of an image, [patches, values per patch]."""
        patches = image.view(rows, self._side, columns, self._side, 3).transpose(1, 2).reshape(-1, self._patch_bytes)
        return (patches.float() * self._scale - self._offset).to(self.dtype)
