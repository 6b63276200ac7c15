"""Small models of two towers with fixed-seed weights, as transformers saves them."""

import io
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image, ImageOps

from tests.support.models import SIZES, save_tokenizer

VISION = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
# Of Gemma's kind: words go before letters, letters before bytes.
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
MERGES = (("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("C", "a"), ("▁", "▁"))

TEXT = {**SIZES, "intermediate_size": 128, "max_position_embeddings": 77}


def save_clip(directory: Path, tokenizer: Path, **image_settings: Any) -> transformers.CLIPModel:
    """Save a CLIP model with MiniLM's tokenizer, whose [SEP] closes a text."""
    torch.manual_seed(11)
    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 102, "bos_token_id": 101, "pad_token_id": 0},
        vision_config={**VISION, "image_size": 64, "patch_size": 16},
        projection_dim=32,
    )
    model = transformers.CLIPModel(config).eval()
    enlarge(model)
    model.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    small = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    transformers.CLIPImageProcessorPil(**{**small, **image_settings}).save_pretrained(directory)
    return model


def save_siglip(directory: Path, tokenizer: Path, **image_settings: Any) -> transformers.SiglipModel:
    """Save a SigLIP model for images of one size, with MiniLM's tokenizer."""
    torch.manual_seed(12)
    model = transformers.SiglipModel(
        transformers.SiglipConfig(
            text_config={**TEXT, "max_position_embeddings": 64, "projection_size": VISION["hidden_size"]},
            vision_config={**VISION, "image_size": 64, "patch_size": 16},
        )
    ).eval()
    enlarge(model)
    model.save_pretrained(directory)
    # It makes no mask: the padding is read.
    save_tokenizer(directory, tokenizer, model_input_names=["input_ids"])
    size = {"height": 64, "width": 64}
    transformers.SiglipImageProcessorPil(**{"size": size, **image_settings}).save_pretrained(directory)
    return model


def save_naflex(directory: Path, **image_settings: Any) -> transformers.Siglip2Model:
    """SigLIP 2 of images of any shape, with a tokenizer of Gemma's kind."""
    torch.manual_seed(13)
    tokenizer = save_gemma_tokenizer(directory)
    model = transformers.Siglip2Model(
        transformers.Siglip2Config(
            text_config={
                **TEXT,
                "vocab_size": len(tokenizer),
                "max_position_embeddings": 64,
                "projection_size": VISION["hidden_size"],
            },
            vision_config={**VISION, "num_patches": 16, "patch_size": 8},
        )
    ).eval()
    enlarge(model)
    model.save_pretrained(directory)
    settings = {"patch_size": 8, "max_num_patches": 24, **image_settings}
    transformers.Siglip2ImageProcessorPil(**settings).save_pretrained(directory)
    return model


def save_gemma_tokenizer(directory: Path, kind: Any = transformers.Siglip2Tokenizer) -> Any:
    """Save a tokenizer like those of SigLIP 2's checkpoints: it marks the end and not the beginning."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁.,!", *string.ascii_letters]
    pieces += ["".join(pair) for pair in MERGES]
    options = {"add_bos_token": False, "add_eos_token": True, "padding_side": "right"}
    settings = {**options, "do_lower_case": True, "model_input_names": ["input_ids"]}
    tokenizer = kind(vocab={piece: i for i, piece in enumerate(pieces)}, merges=list(MERGES), **settings)
    tokenizer.save_pretrained(directory)
    return tokenizer


def save_clip_tokenizer(directory: Path) -> Any:
    """Save a tokenizer of CLIP's kind, in the two files that preceded tokenizer.json."""
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pieces = [*sorted(letters), *(f"{letter}</w>" for letter in sorted(letters))]
    merges = [("c", "a"), ("ca", "t</w>"), ("o", "g</w>"), ("d", "og</w>")]
    pieces += ["".join(pair) for pair in merges] + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n")
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges)


@torch.no_grad()
def enlarge(model: torch.nn.Module) -> None:
    """Enlarge the weights, so that items are far from each other."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter *= 4


class TowersLibrary:
    """Reference of transformers for CLIP and SigLIP: unit vectors of texts and of images."""

    def __init__(self, directory: Path) -> None:
        self.model = transformers.AutoModel.from_pretrained(directory).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")

    @torch.inference_mode()
    def texts(self, texts: list[str]) -> np.ndarray:
        """SigLIP pads texts and reads the padding, CLIP does not."""
        is_clip = self.model.config.model_type == "clip"
        length = self.model.config.text_config.max_position_embeddings
        padding = True if is_clip else "max_length"
        inputs = self.tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
        read = ("input_ids", "attention_mask") if is_clip else ("input_ids",)
        return unit(self.model.get_text_features(**{name: inputs[name] for name in read}).pooler_output)

    @torch.inference_mode()
    def images(self, files: list[bytes]) -> np.ndarray:
        images = [ImageOps.exif_transpose(Image.open(io.BytesIO(file))) for file in files]
        return unit(self.model.get_image_features(**self.processor(images, return_tensors="pt")).pooler_output)


def unit(vectors: torch.Tensor) -> np.ndarray:
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()


# Of 4000 Hz: a window of 1 s is 51 frames, which cost 8 tokens of text. The library shrinks a long sound to
# 64 bands, however many there are.
MEL = {
    "feature_size": 64,
    "sampling_rate": 4000,
    "hop_length": 80,
    "max_length_s": 1,
    "fft_window_size": 512,
    "frequency_min": 50,
    "frequency_max": 1900,
}
SOUND = {
    "num_mel_bins": 64,
    "spec_size": 64,
    "patch_size": 8,
    "patch_stride": [8, 8],
    "window_size": 4,
    "patch_embeds_hidden_size": 16,
    "depths": [2, 2],
    "num_attention_heads": [2, 4],
    "hidden_size": 32,
    "num_hidden_layers": 2,
}


def save_clap(directory: Path, tokenizer: Path, *, is_fused: bool = False, **mel: Any) -> transformers.ClapModel:
    """Save a CLAP model with MiniLM's tokenizer, whose [PAD] is 0: positions of texts count from 1."""
    torch.manual_seed(13)
    text = {**SIZES, "intermediate_size": 128, "max_position_embeddings": 66, "pad_token_id": 0}
    sound = {**SOUND, "enable_fusion": is_fused, "fusion_type": "aff_2d" if is_fused else None}
    model = transformers.ClapModel(transformers.ClapConfig(text_config=text, audio_config=sound, projection_dim=32))
    enlarge(model)
    with torch.no_grad():
        for name, statistic in model.named_buffers():
            if "running" in name:
                statistic.copy_(torch.rand(statistic.shape) * 50 - (0 if "var" in name else 60))
    model.eval().save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    truncation = "fusion" if is_fused else "rand_trunc"
    transformers.ClapFeatureExtractor(**{**MEL, "truncation": truncation, **mel}).save_pretrained(directory)
    return model
