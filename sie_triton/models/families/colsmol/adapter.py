"""ColSmol's forward pass: tiles of all images side by side, then all items packed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.colsmol import read, tile_counts
from sie_triton.models.families.colsmol.processor import load_processor
from sie_triton.models.families.shared.pages.multimodal_adapter import PROJECTION, MultimodalAdapter, UnitVectors
from sie_triton.models.families.shared.token_batch import tokens

# Name of the projection.
LINEAR = "linear"
PREFIX = f"{LINEAR}."

# Most tokens around a tile in the prompt: its place may be tokenized letter by letter.
AROUND_TILE = 32


class ColSmolAdapter(MultimodalAdapter):
    """ColSmol adapter. `connector` makes states of the language model of those of patches."""

    def __init__(
        self,
        encoder: LanguageModel,
        vision: VisionTower,
        connector: torch.nn.Module,
        projection: torch.nn.Module,
        files: PageFiles,
        plan: TilePlan,
        page: Features,
    ) -> None:
        num_patches, num_tokens = tile_counts(files)
        read = files.longest + plan.most_tiles * (num_patches + num_tokens + AROUND_TILE)
        limits = {PIXEL_LENGTHS.name: plan.most_tiles * vision.image_bytes, READ.name: read}
        super().__init__(encoder, files.image_token, page, limits)
        self._vision, self._connector = vision, connector
        self._vectors = UnitVectors(encoder, projection)
        encoder.loras.model.aliases[LINEAR] = PROJECTION
        self.weights_bytes += vision.weights_bytes + num_bytes(connector) + num_bytes(projection)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        return self._vectors(self.hidden_states(batch), tokens(batch)[1])

    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        pixels, sizes = batch.features[PIXELS.name]
        assert sizes is not None
        if (sizes % self._vision.image_bytes).any():
            raise ValueError(f"each tile of an image must have {self._vision.image_bytes} bytes")
        states = self._connector(self._vision(pixels).last_hidden_state)
        return [states.flatten(0, 1)], (sizes // self._vision.image_bytes * states.shape[1]).astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        return placed(tokens(batch)[1])[1][None].astype(np.int32)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ColSmolAdapter:
    files = read(directory)
    plan = TilePlan.read(directory, files.vision)
    page = load_processor(spec, directory).page(*plan.tile.shape)
    vlm: Any = engine.load(files.directory)
    encoder = engine.language_model(vlm.text_model)
    engine.settle(encoder)
    vision = engine.prepared(VisionTower(vlm.vision_model, plan.tile))
    layer = torch.nn.Linear(files.text.integer("hidden_size", least=1), files.dim, device="meta")
    projection = Checkpoint(files.directory, engine.dtype, engine.device, PREFIX).fill(layer, PREFIX)
    for each in (vlm.connector, projection):
        own_pages(each)
    return ColSmolAdapter(encoder, vision, vlm.connector, projection, files, plan, page)
