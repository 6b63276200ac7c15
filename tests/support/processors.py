"""What a model reads of pictures and sounds: by our readers of its files, and by the library's processors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.mel import CLASS, MelPlan
from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.processor_classes import OF_ONE_SIZE
from sie_triton.models.families.donut import DonutFiles, page, page_plan
from sie_triton.models.families.glm_ocr import page_size as of_glm
from sie_triton.models.families.grounding_dino import image_plan
from sie_triton.models.families.lighton_ocr import LongestEdgePlan
from sie_triton.models.families.owlv2 import square_plan
from sie_triton.models.families.owlv2.resizing import in_square
from sie_triton.models.families.paddleocr_vl import page_size as of_paddle
from sie_triton.models.inputs.decoding import to_rgb
from sie_triton.models.inputs.mel import spectrograms
from sie_triton.models.inputs.patch_resizing import patched_size, resized_to
from sie_triton.models.inputs.pixels import resized

Array = np.ndarray[Any, Any]

# Model types whose processor has the class if no file names one; empty: none has.
MODEL_TYPES = {
    "CLIPImageProcessor": "clip",
    "SiglipImageProcessor": "siglip",
    "Siglip2ImageProcessor": "siglip2",
    "OwlViTImageProcessor": "owlvit",
    "Owlv2ImageProcessor": "owlv2",
    "GroundingDinoImageProcessor": "grounding-dino",
    "DonutImageProcessor": "",
    "PixtralImageProcessor": "mistral3",
    "Qwen2VLImageProcessor": "qwen3_vl",
    "Glm46VImageProcessor": "",
    "PaddleOCRVLImageProcessor": "paddleocr_vl",
    CLASS: "clap",
}
SIZES = {"Qwen2VLImageProcessor": patched_size, "Glm46VImageProcessor": of_glm, "PaddleOCRVLImageProcessor": of_paddle}


def written(directory: Path, usual: str, files: dict[str, Any]) -> Path:
    """Write `files`, of the image processor or of the whole processor, beside a config.json."""
    files = {"config.json": {"model_type": MODEL_TYPES[usual]}, **files}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def ours(directory: Path, usual: str) -> Callable[[Any], Array]:
    """Return our function of a picture, or of samples, to what the model reads; LoadError if it is refused."""
    if usual == CLASS:
        mel = MelPlan.read(directory)
        return lambda samples: spectrograms(samples, mel)
    make = _pixels(directory, usual)
    return lambda image: make(to_rgb(image.copy(), "image"))


def by_the_library(directory: Path, usual: str) -> Callable[[Any], Array]:
    """Return the library's function. A class that does not convert pictures gets them in RGB."""
    if usual == CLASS:
        sounds: Any = transformers.AutoFeatureExtractor.from_pretrained(directory)  # type: ignore[no-untyped-call]
        rate = sounds.sampling_rate
        return lambda samples: sounds(samples, sampling_rate=rate, return_tensors="np")["input_features"][0]
    library: Any = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")  # type: ignore[no-untyped-call]

    def read(image: Image.Image) -> Array:
        found = library([image if library.do_convert_rgb else image.convert("RGB")], return_tensors="np")
        if "pixel_attention_mask" in found:
            return np.asarray(found["pixel_values"][0][: found["pixel_attention_mask"][0].sum()])
        return np.asarray(found["pixel_values"] if usual in SIZES else found["pixel_values"][0])

    return read


def _pixels(directory: Path, usual: str) -> Callable[[Image.Image], Array]:
    if usual in OF_ONE_SIZE:
        plan = ImagePlan.read(directory, usual)
        return lambda image: _scaled(resized(image, plan), plan).transpose(2, 0, 1)
    if usual == "Owlv2ImageProcessor":
        square = square_plan(directory, usual)
        return lambda image: _scaled(in_square(np.asarray(image), square.shape), square).transpose(2, 0, 1)
    if usual == "GroundingDinoImageProcessor":
        free = image_plan(directory)
        return lambda image: _scaled(resized(image, free), free).transpose(2, 0, 1)
    if usual == "DonutImageProcessor":
        files = DonutFiles(directory, *page_plan(directory), 0, 0)
        return lambda image: _scaled(page(image, files), files.plan).transpose(2, 0, 1)
    return _patches(directory, usual)


def _patches(directory: Path, usual: str) -> Callable[[Image.Image], Array]:
    if usual == "PixtralImageProcessor":
        longest = LongestEdgePlan.read(directory)
        return lambda image: _scaled(
            resized_to(image, longest.size(image.height, image.width), longest.resample), longest
        ).transpose(2, 0, 1)
    if usual == "Siglip2ImageProcessor":
        naflex = NaflexPlan.read(directory)
        side = naflex.patch_size

        def of_shape(image: Image.Image) -> Array:
            pixels = resized_to(image, naflex.shape(image.height, image.width), naflex.resample)
            return _cut(_scaled(pixels, naflex), side, 1)[0].reshape(-1, 3 * side**2)

        return of_shape
    plan = PatchPlan.read(directory, Fields("", {}), usual)

    def of_pixels(image: Image.Image) -> Array:
        pixels = resized_to(image, SIZES[usual](image.height, image.width, plan), plan.resample)
        merged = plan.merge if usual != "PaddleOCRVLImageProcessor" else 1
        cut = _cut(_scaled(pixels, plan), plan.patch, merged)[1]
        if usual == "PaddleOCRVLImageProcessor":
            return np.repeat(cut, plan.frames, 1)
        return np.repeat(cut[:, :, None], plan.frames, 2).reshape(len(cut), -1)

    return of_pixels


def _scaled(pixels: Array, plan: Any) -> Array:
    return np.asarray((pixels * plan.scale - np.array(plan.mean)) / np.array(plan.std))


def _cut(pixels: Array, side: int, merged: int) -> tuple[Array, Array]:
    """Cut into patches, those of a block of `merged` · `merged` together: with colours last, and with colours first."""
    rows, columns = (length // (side * merged) for length in pixels.shape[:2])
    cut = pixels.reshape(rows, merged, side, columns, merged, side, 3).transpose(0, 3, 1, 4, 2, 5, 6)
    last = cut.reshape(-1, side, side, 3)
    return last, last.transpose(0, 3, 1, 2)
