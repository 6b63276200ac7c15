"""PaddleOCR-VL's weights, and the form in which it takes pages."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel

from sie_triton.contract import Features
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.page_writer import PatchWriter
from sie_triton.engines.torch.patch_tower import as_product
from sie_triton.models.families.paddleocr_vl import NAMES, TASK, WITH_PLACES, images, load_processor
from sie_triton.models.families.shared.ocr import MARKDOWN
from sie_triton.models.families.shared.ocr.adapter import OcrAdapter
from sie_triton.models.families.shared.ocr.tasks import PatchFiles
from sie_triton.models.inputs.tokenizer import open_tokenizer


class PatchProduct(torch.nn.Module):
    """A convolution as a matrix product, for patches of the size of its kernel."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.product = as_product(convolution)

    @property
    def weight(self) -> Any:
        return self.product.weight

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Project: [patches, 3, patch, patch] → [patches, d, 1, 1]."""
        states: torch.Tensor = self.product(patches.flatten(1))
        return states[:, :, None, None]


class PaddleWriter(PatchWriter):
    def __init__(self, model: PreTrainedModel, of: PatchFiles) -> None:
        super().__init__(model, of.plan, of.files.image_token, merge=1)
        tower = self._model.model.visual.vision_model.embeddings
        tower.patch_embedding = PatchProduct(tower.patch_embedding)


class PaddleAdapter(OcrAdapter):
    def label(self, item: int, features: Features) -> str:
        name = NAMES[int(features[TASK.name].values[item])]
        return name if name in WITH_PLACES else MARKDOWN


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> PaddleAdapter:
    engine.avoid_float16()
    of, page = images(directory), load_processor(spec, directory).page()
    writer = engine.prepared(PaddleWriter(engine.load(directory, AutoModelForImageTextToText), of))
    return PaddleAdapter(writer, open_tokenizer(directory), of.files, of.plan.most_pixels, of.counts, page)
