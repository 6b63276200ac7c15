"""Qwen3-VL-Embedding's forward pass: the state of each item's last token."""

from pathlib import Path
from typing import Any

import torch

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.heads import last, states_at
from sie_triton.models.families.qwen3_vl_embedding import Qwen3VLEmbedding, load_processor, plan_of
from sie_triton.models.families.shared.pages.patch_adapter import PatchAdapter, parts_of
from sie_triton.models.families.shared.token_batch import tokens


class Qwen3VLEmbeddingAdapter(PatchAdapter):
    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        _, lengths = tokens(batch)
        states = states_at(self.hidden_states(batch), last(lengths))
        return {DENSE.name: states.float().cpu().numpy()}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> Qwen3VLEmbeddingAdapter:
    files = Qwen3VLEmbedding.read(directory)
    plan, page = plan_of(files), load_processor(spec, directory).page()
    model: Any = engine.load(files.directory)
    return Qwen3VLEmbeddingAdapter(*parts_of(model, plan, engine), files, page)
