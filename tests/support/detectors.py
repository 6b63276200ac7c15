"""Small models that find objects in images, with fixed-seed weights, as transformers saves them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from sie_triton.errors import InputError
from tests.support.extraction import Extractor, Request
from tests.support.models import SIZES, save_tokenizer
from tests.support.pictures import of_all_kinds, picture, saved, upright
from tests.support.towers import TEXT, VISION

MAX_TEXT, CLOSING = 16, 30521
STAGES = ["stage2", "stage3", "stage4"]

FACTORS = {"box_head": 0.2, "logit_shift": 0.1, "logit_scale": 0.1, "class_head": 1.0}


def save_owl(directory: Path, tokenizer: Path, version: str = "owlv2", **image_settings: Any) -> Path:
    """Save an OWL model with MiniLM's tokenizer, except that the last vocabulary entry closes a label; images of 96 ×
    96 in 36 patches.
    """
    torch.manual_seed(5)
    prefix = {"owlv2": "Owlv2", "owlvit": "OwlViT"}[version]
    config = getattr(transformers, f"{prefix}Config")(
        text_config={**TEXT, "max_position_embeddings": MAX_TEXT, "eos_token_id": CLOSING, "bos_token_id": 101},
        vision_config={**VISION, "image_size": 96, "patch_size": 16},
        projection_dim=64,
    )
    model = getattr(transformers, f"{prefix}ForObjectDetection")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # So that labels and patches are far from one another, and boxes inside their image.
            if parameter.ndim > 1:
                parameter *= next((factor for part, factor in FACTORS.items() if part in name), 2)
        model.class_head.logit_scale.bias.fill_(6)
    model.save_pretrained(directory)
    save_tokenizer(directory, tokenizer, model_max_length=MAX_TEXT)
    closing(directory / "tokenizer.json")
    small = {"size": {"height": 96, "width": 96}, **image_settings}
    getattr(transformers, f"{prefix}ImageProcessorPil")(**small).save_pretrained(directory)
    return directory


def closing(path: Path) -> None:
    """Make the tokenizer append CLOSING to each text."""
    made = tokenizers.Tokenizer.from_file(str(path))
    ends = [("[CLS]", 101), (made.id_to_token(CLOSING), CLOSING)]
    template = f"[CLS] $A {made.id_to_token(CLOSING)}"
    made.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=ends)
    made.save(str(path))


class Finder(Extractor):
    """The family, without a server: the objects in each file."""

    def __init__(self, family: str, directory: Path, **changes: Any) -> None:
        super().__init__(family, directory, **{"inputs": ("image",), **changes})

    def extract(self, requests: Sequence[Request]) -> list[list[Any]]:
        return [[each["objects"] for each in answers] for answers in super().extract(requests)]


class Owl:
    """The library, one image at a time; labels as SIE writes them."""

    def __init__(self, directory: Path, version: str = "owlv2") -> None:
        prefix = {"owlv2": "Owlv2", "owlvit": "OwlViT"}[version]
        self.model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(directory).eval()
        images = getattr(transformers, f"{prefix}ImageProcessorPil").from_pretrained(directory)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.processor = getattr(transformers, f"{prefix}Processor")(images, tokenizer)

    @torch.inference_mode()
    def __call__(
        self, file: bytes, labels: Sequence[str], threshold: float = 0.1, template: str = "a photo of {}"
    ) -> list[dict[str, Any]]:
        image = upright(file)
        texts = [[template.replace("{}", label) for label in labels]]
        inputs = self.processor(text=texts, images=[image], max_length=MAX_TEXT, return_tensors="pt")
        outputs = self.model(**{name: inputs[name] for name in ("input_ids", "attention_mask", "pixel_values")})
        (found,) = self.processor.post_process_grounded_object_detection(
            outputs, threshold=threshold, target_sizes=[(image.height, image.width)], text_labels=[labels]
        )
        return told(found["boxes"], found["text_labels"], found["scores"])


def told(boxes: torch.Tensor, labels: Sequence[str | None], scores: torch.Tensor) -> list[dict[str, Any]]:
    return [
        {"label": label, "score": score, "bbox": box}
        for box, label, score in zip(boxes.tolist(), labels, scores.tolist(), strict=True)
    ]


def same(found: Sequence[Any], expected: Sequence[Any], score: float = 1e-4, pixels: float = 0.5) -> bool:
    """Check for the same objects in the same order, within the allowed differences. A label None matches any."""
    if len(found) != len(expected):
        return False
    if any(b["label"] not in (a["label"], None) for a, b in zip(found, expected, strict=True)):
        return False
    scores = [abs(a["score"] - b["score"]) for a, b in zip(found, expected, strict=True)]
    boxes = [np.abs(np.subtract(a["bbox"], b["bbox"])).max() for a, b in zip(found, expected, strict=True)]
    return max(scores, default=0) <= score and max(boxes, default=0) <= pixels


def check_upright(ours: Finder, library: Callable[..., list[dict[str, Any]]], labels: Sequence[str]) -> None:
    """Assert that boxes are those of the image as it is shown, which its file holds turned."""
    files = of_all_kinds()
    expected = library(files["turned"], labels)
    assert expected
    assert same(ours([files["turned"]], labels)[0], expected)
    assert not same(ours([files["jpeg"]], labels)[0], expected)


def refused(ours: Finder, labels: Sequence[str], **given: Any) -> str:
    """Return the error message of labels that the model cannot read."""
    with pytest.raises(InputError) as told:
        ours([saved(picture())], labels, **given)
    return str(told.value)


def save_dino(directory: Path, tokenizer: Path, **image_settings: Any) -> Path:
    """Save a model for images of about 96 × 128, with 20 places each."""
    torch.manual_seed(3)
    backbone = transformers.SwinConfig(
        image_size=96, embed_dim=24, depths=[1] * 4, num_heads=[1, 2, 2, 2], window_size=4, out_features=STAGES
    )
    text = transformers.BertConfig(**{**SIZES, "hidden_size": 32}, intermediate_size=64)
    encoder, decoder = (
        {f"{part}_layers": 2, f"{part}_attention_heads": 4, f"{part}_ffn_dim": 64} for part in ("encoder", "decoder")
    )
    config = transformers.GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=32, num_queries=20, **encoder, **decoder
    )
    model = transformers.GroundingDinoForObjectDetection(config).eval()
    with torch.no_grad():
        # Nothing would move a box from where it was proposed, and all would be sure.
        for name, parameter in model.named_parameters():
            if "bbox_embed" in name:
                parameter.normal_(0, 0.3)
            elif name.startswith("model.decoder.layer_norm"):
                parameter *= 0.2
    model.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    small = {"size": {"shortest_edge": 96, "longest_edge": 128}, **image_settings}
    transformers.GroundingDinoImageProcessorPil(**small).save_pretrained(directory)
    return directory


class Dino:
    """The library, one image at a time; phrases become labels as SIE makes them."""

    def __init__(self, directory: Path) -> None:
        self.model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(directory).eval()
        images = transformers.GroundingDinoImageProcessorPil.from_pretrained(directory)
        self.processor = transformers.GroundingDinoProcessor(
            images, transformers.AutoTokenizer.from_pretrained(directory)
        )

    @torch.inference_mode()
    def __call__(
        self, file: bytes, labels: Sequence[str], threshold: float = 0.25, text_threshold: float = 0.25
    ) -> list[dict[str, Any]]:
        image = upright(file)
        text = " ".join(f"{label.lower().strip()}." for label in labels)
        inputs = self.processor(images=image, text=text, truncation=False, return_tensors="pt")
        (found,) = self.processor.post_process_grounded_object_detection(
            self.model(**inputs),
            inputs["input_ids"],
            threshold=threshold,
            text_threshold=text_threshold,
            target_sizes=[(image.height, image.width)],
        )
        return told(found["boxes"], [nearest(phrase, labels) for phrase in found["text_labels"]], found["scores"])


def nearest(phrase: str, labels: Sequence[str]) -> str | None:
    """Label with the largest share of its words in the phrase, then with the most; None if no word matches."""
    words = set(re.findall(r"\w+", phrase.lower()))
    counts = {label: [word in words for word in re.findall(r"\w+", label.lower())] for label in labels}
    best = max(labels, key=lambda label: (sum(counts[label]) / len(counts[label]), sum(counts[label])))
    return best if any(counts[best]) else None
