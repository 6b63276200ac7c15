"""ColQwen2's forward pass: patches of all images in one row, then the tokens of all items in another."""

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForPreTraining

from sie_triton.checkpoints.pages import PageFiles
from sie_triton.checkpoints.patches import PatchPlan
from sie_triton.contract import Batch, Features
from sie_triton.contract.tensors import IMAGE_SIZES, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import own_pages
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.patches import PatchTower
from sie_triton.families.colqwen2 import is_of_engine
from sie_triton.families.page_adapter import Ints, PageAdapter
from sie_triton.families.token_batch import tokens
from sie_triton.inputs.grid import grid_positions

# Of colpali-engine's classes.
PROJECTION = "custom_text_proj."


class ColQwen2Adapter(PageAdapter):
    def __init__(
        self,
        encoder: LanguageModel,
        vision: PatchTower,
        projection: torch.nn.Module,
        files: PageFiles,
        page: Features,
    ) -> None:
        plan = vision.plan
        longest = files.longest + plan.most_pixels // plan.patch**2
        limits = {PIXEL_LENGTHS.name: 3 * plan.most_pixels, READ.name: longest}
        super().__init__(encoder, projection, files.image_token, page, limits)
        self._vision, self._plan = vision, plan
        self.weights_bytes += vision.weights_bytes

    def images(self, batch: Batch) -> tuple[torch.Tensor, Ints]:
        pixels, num_bytes = batch.features[PIXELS.name]
        sizes = batch.features[IMAGE_SIZES.name].values
        if (sizes % self._plan.factor).any() or (3 * sizes.prod(axis=1, dtype=np.int64) != num_bytes).any():
            raise ValueError(f"sides of an image must be multiples of {self._plan.factor}, and have 3 bytes a pixel")
        states = self._vision(pixels, sizes[sizes[:, 0] > 0]).pooler_output
        return states, self._grids(batch).prod(axis=1).astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        input_ids, lengths = tokens(batch)
        return grid_positions(input_ids == self._image_token, lengths, self._grids(batch))

    def _grids(self, batch: Batch) -> Ints:
        """Tokens of each item's image, down and across, int32 [items, 2]."""
        grids: Ints = batch.features[IMAGE_SIZES.name].values // self._plan.factor
        return grids


def load(files: PageFiles, plan: PatchPlan, page: Features, engine: TorchEngine) -> ColQwen2Adapter:
    """LoadError says what in the directory cannot be used."""
    vlm, projection = parts(files, engine)
    encoder = engine.language_model(vlm.language_model)
    engine.settle(encoder)
    vision = engine.patch_tower(vlm.visual, plan)
    own_pages(projection)
    return ColQwen2Adapter(encoder, vision, projection, files, page)


def parts(files: PageFiles, engine: TorchEngine) -> tuple[Any, torch.nn.Module]:
    """The model that reads, and the projection of its states."""
    if not is_of_engine(files):
        model: Any = engine.load(files.directory, AutoModelForPreTraining)
        return model.vlm, model.embedding_proj_layer
    vlm = engine.load(files.directory)
    layer = torch.nn.Linear(vlm.config.get_text_config().hidden_size, files.dim, device="meta")
    weights = Checkpoint(files.directory, engine.dtype, engine.device, PROJECTION)
    return vlm, weights.fill(layer, PROJECTION)
