"""GLM-OCR's weights, and the form in which it takes pages."""

from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel

from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.page_writer import PatchWriter
from sie_triton.engines.torch.patch_tower import as_product, filmed
from sie_triton.models.families.glm_ocr import images, load_processor
from sie_triton.models.families.shared.ocr.adapter import OcrAdapter
from sie_triton.models.families.shared.ocr.tasks import PatchFiles
from sie_triton.models.inputs.tokenizer import open_tokenizer


class GlmWriter(PatchWriter):
    def __init__(self, model: PreTrainedModel, of: PatchFiles) -> None:
        super().__init__(model, of.plan, of.files.image_token, of.plan.merge)
        self._frames = of.plan.frames
        tower = self._model.model.visual
        tower.patch_embed = as_product(tower.patch_embed.proj)

    def patches(self, pixels: torch.Tensor) -> torch.Tensor:
        return filmed(super().patches(pixels), self._frames)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> OcrAdapter:
    engine.avoid_float16()
    of, page = images(directory), load_processor(spec, directory).page()
    writer = engine.prepared(GlmWriter(engine.load(directory, AutoModelForImageTextToText), of))
    return OcrAdapter(writer, open_tokenizer(directory), of.files, of.plan.most_pixels, of.counts, page)
