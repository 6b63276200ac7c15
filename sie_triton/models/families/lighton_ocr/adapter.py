"""LightOnOCR's weights, and the form in which it takes pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.page_writer import PageWriter
from sie_triton.models.families.lighton_ocr import MODEL_TYPE, LightOnFiles, load_processor
from sie_triton.models.families.shared.ocr.adapter import OcrAdapter
from sie_triton.models.inputs.tokenizer import open_tokenizer


class EachAlone(torch.nn.Module):
    """Pixtral's tower, one image at a time.

    For several images it would build a mask of all patches by all patches; one image needs no mask.
    """

    def __init__(self, tower: Any) -> None:
        super().__init__()
        self.tower = tower
        tower.transformer.register_forward_pre_hook(_without_mask, with_kwargs=True)

    def forward(self, pixel_values: torch.Tensor, image_sizes: torch.Tensor, **_: Any) -> BaseModelOutputWithPooling:
        sizes = [(int(height), int(width)) for height, width in image_sizes]
        states = [
            self.tower(image[None, :, :height, :width], image_sizes=[(height, width)]).last_hidden_state
            for image, (height, width) in zip(pixel_values, sizes, strict=True)
        ]
        return BaseModelOutputWithPooling(last_hidden_state=torch.cat(states, 1))


def _without_mask(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return given, {**named, "attention_mask": None}


class LightOnWriter(PageWriter):
    def __init__(self, model: PreTrainedModel, of: LightOnFiles) -> None:
        super().__init__(model, of.plan, of.files.image_token)
        self._model.model.vision_encoder = EachAlone(self._model.model.vision_encoder)

    def image_inputs(self, images: Sequence[torch.Tensor], ids: torch.Tensor) -> Mapping[str, Any]:
        sizes = torch.tensor([image.shape[:2] for image in images], device=self.device)
        height, width = sizes.amax(0).tolist()
        pixels = torch.zeros(len(images), 3, height, width, dtype=self.dtype, device=self.device)
        for place, image in zip(pixels, images, strict=True):
            place[:, : image.shape[0], : image.shape[1]] = image.permute(2, 0, 1)
        return {"pixel_values": pixels, "image_sizes": sizes}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> OcrAdapter:
    engine.avoid_float16()
    of, page = LightOnFiles.read(directory), load_processor(spec, directory).page()
    files = of.files
    said = {**files.vlm.values, "model_type": MODEL_TYPE, "image_token_id": files.image_token}
    model = engine.load(files.directory, AutoModelForImageTextToText, said)
    writer = engine.prepared(LightOnWriter(model, of))
    return OcrAdapter(writer, open_tokenizer(files.directory), files, of.plan.most_pixels, of.counts, page)
