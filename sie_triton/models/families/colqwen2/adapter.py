"""ColQwen2's weights and output vectors."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForPreTraining

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.models.families.colqwen2 import ColQwen2, is_of_engine, load_processor
from sie_triton.models.families.shared.pages import PAGE
from sie_triton.models.families.shared.pages.multimodal_adapter import PROJECTION, UnitVectors
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.inputs.patch_resizing import patched_size

PREFIX = f"{PROJECTION}."


class ColQwen2Adapter(PatchAdapter):
    def __init__(
        self,
        encoder: LanguageModel,
        vision: PatchTower,
        projection: torch.nn.Module,
        files: PageFiles,
        page: Features,
    ) -> None:
        super().__init__(encoder, vision, files.image_token, files.longest, page)
        self._vectors = UnitVectors(encoder, projection)
        self.weights_bytes += num_bytes(projection)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        return self._vectors(self.hidden_states(batch), tokens(batch)[1])


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ColQwen2Adapter:
    files = ColQwen2.read(directory)
    plan = PatchPlan.read(directory, files.vision)
    page = load_processor(spec, directory).page(*patched_size(*PAGE, plan))
    vlm, projection = parts(files, engine)
    encoder = engine.language_model(vlm.language_model)
    engine.settle(encoder)
    vision = engine.prepared(PatchTower(vlm.visual, plan))
    own_pages(projection)
    return ColQwen2Adapter(encoder, vision, projection, files, page)


def parts(files: PageFiles, engine: TorchEngine) -> tuple[Any, torch.nn.Module]:
    """Return the vision language model and the projection of its states."""
    if not is_of_engine(files):
        model: Any = engine.load(files.directory, AutoModelForPreTraining)
        return model.vlm, model.embedding_proj_layer
    vlm = engine.load(files.directory)
    layer = torch.nn.Linear(vlm.config.get_text_config().hidden_size, files.dim, device="meta")
    weights = Checkpoint(files.directory, engine.dtype, engine.device, PREFIX)
    return vlm, weights.fill(layer, PREFIX)
