"""The forward pass of Qwen's vision models: patches of all images in one row, tokens of all items in another."""

from collections.abc import Sequence

import numpy as np
import torch

from sie_triton.arrays import Ints
from sie_triton.contract import Batch, Features
from sie_triton.contract.tensors import IMAGE_SIZES, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.families.shared.pages.multimodal_adapter import MultimodalAdapter
from sie_triton.families.shared.token_batch import tokens
from sie_triton.inputs.grid import grid_positions


class PatchAdapter(MultimodalAdapter):
    """Base of adapters for Qwen's vision models.

    `longest` limits the tokens of a text, `num_images` the images of an item.
    """

    def __init__(
        self,
        encoder: LanguageModel,
        vision: PatchTower,
        image_token: int,
        longest: int,
        page: Features,
        num_images: int = 1,
    ) -> None:
        plan = vision.plan
        pixels = num_images * plan.most_pixels
        limits = {PIXEL_LENGTHS.name: 3 * pixels, READ.name: longest + pixels // plan.patch**2}
        super().__init__(encoder, image_token, page, limits)
        self._vision, self._plan = vision, plan
        self.weights_bytes += vision.weights_bytes

    def sizes(self, batch: Batch) -> Ints:
        """Return height and width of the images of each item, int32 [items, images, 2]; 0 for missing images."""
        sizes: Ints = batch.features[IMAGE_SIZES.name].values[:, None]
        return sizes

    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        pixels, num_bytes = batch.features[PIXELS.name]
        sizes = self.sizes(batch)
        needed = 3 * sizes.prod(axis=2, dtype=np.int64).sum(axis=1)
        if (sizes % self._plan.factor).any() or (needed != num_bytes).any():
            raise ValueError(
                f"sides of an image must be multiples of {self._plan.factor}, and a pixel must have 3 bytes"
            )
        seen = self._vision(pixels, sizes[sizes[:, :, 0] > 0])
        deep = getattr(seen, "deepstack_features", None) or ()
        counts = (sizes // self._plan.factor).prod(axis=2).sum(axis=1)
        return [seen.pooler_output, *deep], counts.astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        input_ids, lengths = tokens(batch)
        return grid_positions(input_ids == self.image_token, lengths, self.sizes(batch) // self._plan.factor)
