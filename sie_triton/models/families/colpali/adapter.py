"""ColPali's forward pass: images of one size side by side, then all items packed; each token sees its whole item."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForPreTraining

from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.colpali import ColPali, images_of, load_processor
from sie_triton.models.families.shared.pages.tower_adapter import PageTowerAdapter


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PageTowerAdapter:
    files = ColPali.read(directory)
    plan, _ = images_of(files)
    page = load_processor(spec, directory).page(*plan.shape)
    model: Any = engine.load(files.directory, AutoModelForPreTraining)
    vlm = model.vlm
    encoder = engine.language_model(vlm.language_model, is_causal=False)
    engine.settle(encoder)
    vision = engine.prepared(VisionTower(vlm.vision_tower, plan))
    limits = {READ.name: max(files.longest, int(page[READ.name].values[0]))}
    layers = (vlm.multi_modal_projector, model.embedding_proj_layer)
    return PageTowerAdapter(encoder, vision, *layers, files, page, limits, first_position=1)  # as in PaliGemma
