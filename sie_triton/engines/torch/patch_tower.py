"""A transformers vision tower that reads images of any size as rows of patches, as a function of pixels."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.tower import Tower


class PatchTower(Tower):
    """A tower that separates the images itself, so that no padding is needed."""

    def __init__(self, model: PreTrainedModel, plan: PatchPlan) -> None:
        super().__init__(model)
        self.plan = plan
        tower: Any = model
        tower.patch_embed = as_product(tower.patch_embed.proj)
        self._mean, self._std = (torch.tensor(each, device=self.device) for each in (plan.mean, plan.std))

    @torch.inference_mode()
    def __call__(self, pixels: npt.NDArray[np.uint8], sizes: Ints) -> Any:
        """Return the model's outputs for images; `pixels` is uint8 [bytes] end to end, `sizes` int32 [images, 2]."""
        ends = np.cumsum(sizes.prod(axis=1, dtype=np.int64) * 3)
        images = np.split(pixels, ends[:-1])
        patches = torch.cat([self._patches(image, *size) for image, size in zip(images, sizes.tolist(), strict=True)])
        grid = torch.from_numpy(np.insert(sizes // self.plan.patch, 0, 1, axis=1).astype(np.int64)).to(self.device)
        return self._model(patches.to(self.dtype), grid_thw=grid)

    def _patches(self, image: npt.NDArray[np.uint8], height: int, width: int) -> torch.Tensor:
        """Return float [patches, 3 · frames · patch · patch]; the patches that become one token are adjacent."""
        pixels = torch.from_numpy(image).to(self.device).view(height, width, 3).float()
        pixels = (pixels * self.plan.scale - self._mean) / self._std
        return filmed(cut(pixels, self.plan.patch, self.plan.merge), self.plan.frames)


def cut(pixels: torch.Tensor, patch: int, merge: int = 1) -> torch.Tensor:
    """Cut [height, width, 3] into [patches, 3, patch, patch], row by row; `merge` × `merge` blocks are contiguous."""
    height, width, _ = pixels.shape
    blocks = pixels.view(height // patch // merge, merge, patch, width // patch // merge, merge, patch, 3)
    return blocks.permute(0, 3, 1, 4, 6, 2, 5).flatten(0, 3)


def filmed(patches: torch.Tensor, frames: int) -> torch.Tensor:
    """Repeat patches as frames of a video: [patches, 3, patch, patch] → [patches, 3 · frames · patch · patch]."""
    return patches[:, :, None].expand(-1, -1, frames, -1, -1).flatten(1)


def as_product(convolution: torch.nn.Conv3d) -> torch.nn.Linear:
    """Return the linear layer for a convolution whose strides equal its kernel: GPUs are fast at one large product."""
    bias, weight = convolution.bias, convolution.weight.detach().flatten(1)
    layer = torch.nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.detach(), requires_grad=False)
    return layer
