"""ColPali's forward pass: images of one size side by side, then all items packed; each token sees its whole item."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForPreTraining

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.colpali import images_of, read
from sie_triton.models.families.colpali.processor import load_processor
from sie_triton.models.families.shared.pages.multimodal_adapter import MultimodalAdapter, UnitVectors
from sie_triton.models.families.shared.token_batch import tokens


class ColPaliAdapter(MultimodalAdapter):
    """ColPali adapter. `image_projection` projects states of the vision tower to those of the language model."""

    def __init__(
        self,
        encoder: LanguageModel,
        vision: VisionTower,
        image_projection: torch.nn.Module,
        projection: torch.nn.Module,
        files: PageFiles,
        page: Features,
    ) -> None:
        read = int(page[READ.name].values[0])
        limits = {PIXEL_LENGTHS.name: vision.image_bytes, READ.name: max(files.longest, read)}
        super().__init__(encoder, files.image_token, page, limits)
        self._vision, self._image_projection = vision, image_projection
        self._vectors = UnitVectors(encoder, projection)
        self.weights_bytes += vision.weights_bytes + num_bytes(image_projection) + num_bytes(projection)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        return self._vectors(self.hidden_states(batch), tokens(batch)[1])

    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        pixels, sizes = batch.features[PIXELS.name]
        assert sizes is not None
        if not np.isin(sizes, (0, self._vision.image_bytes)).all():
            raise ValueError(f"an image must have {self._vision.image_bytes} bytes")
        states = self._image_projection(self._vision(pixels).last_hidden_state)
        return [states.flatten(0, 1)], np.where(sizes > 0, states.shape[1], 0).astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        """Return positions from 1, as in PaliGemma."""
        _, lengths = tokens(batch)
        _, places = placed(lengths)
        return (places + 1)[None].astype(np.int32)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ColPaliAdapter:
    files = read(directory)
    plan, _ = images_of(files)
    page = load_processor(spec, directory).page(*plan.shape)
    model: Any = engine.load(files.directory, AutoModelForPreTraining)
    vlm = model.vlm
    encoder = engine.language_model(vlm.language_model, is_causal=False)
    engine.settle(encoder)
    vision = engine.prepared(VisionTower(vlm.vision_tower, plan))
    for layer in (vlm.multi_modal_projector, model.embedding_proj_layer):
        own_pages(layer)
    return ColPaliAdapter(encoder, vision, vlm.multi_modal_projector, model.embedding_proj_layer, files, page)
