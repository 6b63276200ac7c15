"""Nemotron ColEmbed's forward pass: the states before Qwen3-VL's final norm, as unit vectors."""

from pathlib import Path
from typing import Any

import torch

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.nemo_colembed import NemoColEmbed, load_processor
from sie_triton.models.families.qwen3_vl_embedding import QWEN3_VL
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter, parts_of


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PatchAdapter:
    files = NemoColEmbed.read(directory)
    plan = PatchPlan.read(directory, files.vision)
    page = load_processor(spec, directory).page()
    # Names and shapes of the weights are those of Qwen3-VL.
    model: Any = engine.load(directory, config={**files.vlm.values, "model_type": QWEN3_VL})
    encoder, vision = parts_of(model, plan, engine, is_causal=False)
    # After the probe, whose tolerance is relative to the largest entry of a state; the norm keeps that entry small.
    encoder.model.norm = torch.nn.Identity()
    return PatchAdapter(encoder, vision, files, page)
