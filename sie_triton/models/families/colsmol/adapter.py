"""ColSmol's forward pass: tiles of all images side by side, then all items packed."""

from pathlib import Path
from typing import Any

import torch

from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.colsmol import ColSmol, load_processor, tile_counts
from sie_triton.models.families.shared.pages.multimodal_adapter import PROJECTION
from sie_triton.models.families.shared.pages.tower_adapter import PageTowerAdapter

# Name of the projection.
LINEAR = "linear"
PREFIX = f"{LINEAR}."

# Most tokens around a tile in the prompt: its place may be tokenized letter by letter.
AROUND_TILE = 32


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PageTowerAdapter:
    files = ColSmol.read(directory)
    plan = TilePlan.read(directory, files.vision)
    page = load_processor(spec, directory).page(*plan.tile.shape)
    vlm: Any = engine.load(files.directory)
    encoder = engine.language_model(vlm.text_model)
    engine.settle(encoder)
    vision = engine.prepared(VisionTower(vlm.vision_model, plan.tile))
    layer = torch.nn.Linear(files.text.integer("hidden_size", least=1), files.dim, device="meta")
    projection = Checkpoint(files.directory, engine.dtype, engine.device, PREFIX).fill(layer, PREFIX)
    encoder.loras.model.aliases[LINEAR] = PROJECTION
    num_patches, num_tokens = tile_counts(files)
    limits = {READ.name: files.longest + plan.most_tiles * (num_patches + num_tokens + AROUND_TILE)}
    return PageTowerAdapter(encoder, vision, vlm.connector, projection, files, page, limits, plan.most_tiles)
