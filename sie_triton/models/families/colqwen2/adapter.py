"""ColQwen2's weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForPreTraining

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.colqwen2 import ColQwen2, is_of_engine, load_processor
from sie_triton.models.families.shared.pages import PAGE
from sie_triton.models.families.shared.pages.multimodal_adapter import PROJECTION
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter, parts_of
from sie_triton.models.inputs.patch_resizing import patched_size

PREFIX = f"{PROJECTION}."


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PatchAdapter:
    files = ColQwen2.read(directory)
    plan = PatchPlan.read(directory, files.vision)
    page = load_processor(spec, directory).page(*patched_size(*PAGE, plan))
    vlm, projection = layers_of(files, engine)
    return PatchAdapter(*parts_of(vlm, plan, engine), files, page, projection)


def layers_of(files: PageFiles, engine: TorchEngine) -> tuple[Any, torch.nn.Module]:
    """Return the vision language model and the projection of its states."""
    if not is_of_engine(files):
        model: Any = engine.load(files.directory, AutoModelForPreTraining)
        return model.vlm, model.embedding_proj_layer
    vlm = engine.load(files.directory)
    layer = torch.nn.Linear(vlm.config.get_text_config().hidden_size, files.dim, device="meta")
    weights = Checkpoint(files.directory, engine.dtype, engine.device, PREFIX)
    return vlm, weights.fill(layer, PREFIX)
