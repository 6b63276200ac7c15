"""ColQwen3's weights; its forward pass is ColQwen2's."""

from pathlib import Path
from typing import Any

import torch

from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.colqwen3 import ColQwen3, ColQwen3Options, load_processor, plan_of
from sie_triton.models.families.qwen3_vl_embedding import QWEN3_VL
from sie_triton.models.families.shared.pages import PAGE
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter, parts_of
from sie_triton.models.inputs.patch_resizing import patched_size

VLM, PROJECTION = "vlm.model.", "embedding_proj_layer."


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PatchAdapter:
    files = ColQwen3.read(directory)
    plan = plan_of(files, ColQwen3Options.of(spec))
    page = load_processor(spec, directory).page(*patched_size(*PAGE, plan))
    layer = torch.nn.Linear(files.text.integer("hidden_size", least=1), files.dim, device="meta")
    projection = Checkpoint(directory, engine.dtype, engine.device, PROJECTION).fill(layer, PROJECTION)
    # Names and shapes of the other weights are those of Qwen3-VL.
    weights = Checkpoint(directory, engine.dtype, engine.device, VLM)
    vlm: Any = engine.load_part({**files.vlm.values, "model_type": QWEN3_VL}, weights, VLM)
    return PatchAdapter(*parts_of(vlm, plan, engine), files, page, projection)
