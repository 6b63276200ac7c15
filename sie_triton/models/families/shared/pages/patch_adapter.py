"""The forward pass of Qwen's vision models: patches of all images in one row, tokens of all items in another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Batch, Features
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import IMAGE_SIZES, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.models.families.shared.pages.multimodal_adapter import MultimodalAdapter
from sie_triton.models.families.shared.token_batch import tokens


class PatchAdapter(MultimodalAdapter):
    """Adapter of Qwen's vision models. An item has at most `num_images`."""

    def __init__(
        self,
        encoder: LanguageModel,
        vision: PatchTower,
        files: PageFiles,
        page: Features,
        projection: torch.nn.Module | None = None,
        num_images: int = 1,
    ) -> None:
        plan = vision.plan
        pixels = num_images * plan.most_pixels
        limits = {PIXEL_LENGTHS.name: 3 * pixels, READ.name: files.longest + pixels // plan.patch**2}
        super().__init__(encoder, files, page, limits, projection)
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


def parts_of(
    vlm: Any, plan: PatchPlan, engine: TorchEngine, *, is_causal: bool = True
) -> tuple[LanguageModel, PatchTower]:
    """Return the language model and the vision tower of transformers' `vlm`."""
    encoder = engine.language_model(vlm.language_model, is_causal=is_causal)
    engine.settle(encoder)
    return encoder, engine.prepared(PatchTower(vlm.visual, plan))


def grid_positions(is_image: npt.NDArray[np.bool_], lengths: Ints, grids: Ints) -> Ints:
    """Return the positions of the tokens of packed items, int32 [3, tokens]; `lengths` int32 [items].

    `is_image`, bool [tokens], marks the tokens of images; those of one image are consecutive, row by row. `grids`,
    int32 [items, images, 2], holds the rows and columns of each image, 0 if an item has fewer images.

    >>> grid_positions(np.array([0, 1, 1, 1, 1, 1, 1, 0], bool), np.array([8]), np.array([[[2, 3]]])).tolist()
    [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]
    """
    places = np.empty((3, len(is_image)), np.int32)
    for end, length, of_item in zip(np.cumsum(lengths), lengths, grids, strict=True):
        item, seen = places[:, end - length : end], is_image[end - length : end]
        item[:] = np.arange(length)
        behind = 0
        for rows, columns in of_item[of_item[:, 0] > 0]:
            start = behind + int(seen[behind:].argmax())
            behind = start + rows * columns
            item[:, start:behind] = item[0, start]
            item[1:, start:behind] += np.indices((rows, columns), np.int32).reshape(2, -1)
            item[:, behind:] += max(rows, columns) - rows * columns
    return places
