"""Nemotron ColEmbed's forward pass: the states before Qwen3-VL's final norm, as unit vectors."""

from pathlib import Path
from typing import Any

import torch

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.patch_tower import PatchTower
from sie_triton.models.families.nemo_colembed import NemoColEmbed, load_processor
from sie_triton.models.families.qwen3_vl_embedding import QWEN3_VL
from sie_triton.models.families.shared.pages.multimodal_adapter import unit_vectors
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter
from sie_triton.models.families.shared.token_batch import tokens


class NemoColEmbedAdapter(PatchAdapter):
    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        return unit_vectors(self.hidden_states(batch), tokens(batch)[1])


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> NemoColEmbedAdapter:
    files = NemoColEmbed.read(directory)
    plan = PatchPlan.read(directory, files.vision)
    page = load_processor(spec, directory).page()
    # Names and shapes of the weights are those of Qwen3-VL.
    model: Any = engine.load(directory, config={**files.vlm.values, "model_type": QWEN3_VL})
    encoder = engine.language_model(model.language_model, is_causal=False)
    engine.settle(encoder)
    # After the probe, whose tolerance is relative to the largest entry of a state; the norm keeps that entry small.
    encoder.model.norm = torch.nn.Identity()
    vision = engine.prepared(PatchTower(model.visual, plan))
    return NemoColEmbedAdapter(encoder, vision, files.image_token, files.longest, page)
