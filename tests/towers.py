"""Small models of two towers with fixed-seed weights, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.models import SIZES, save_tokenizer

VISION = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
TEXT = {**SIZES, "intermediate_size": 128, "max_position_embeddings": 77}


def save_clip(directory: Path, tokenizer: Path, **image_settings: Any) -> transformers.CLIPModel:
    """With MiniLM's tokenizer, whose [SEP] closes a text."""
    torch.manual_seed(11)
    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 102, "bos_token_id": 101, "pad_token_id": 0},
        vision_config={**VISION, "image_size": 64, "patch_size": 16},
        projection_dim=32,
    )
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 4  # so that one item is far from another
    model.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    small = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    transformers.CLIPImageProcessorPil(**{**small, **image_settings}).save_pretrained(directory)
    return model


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
    """With MiniLM's tokenizer, whose [PAD] is 0: positions of texts count from 1."""
    torch.manual_seed(13)
    text = {**SIZES, "intermediate_size": 128, "max_position_embeddings": 66, "pad_token_id": 0}
    sound = {**SOUND, "enable_fusion": is_fused, "fusion_type": "aff_2d" if is_fused else None}
    model = transformers.ClapModel(transformers.ClapConfig(text_config=text, audio_config=sound, projection_dim=32))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 4  # so that one item is far from another
        for name, statistic in model.named_buffers():
            if "running" in name:
                statistic.copy_(torch.rand(statistic.shape) * 50 - (0 if "var" in name else 60))
    model.eval().save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    truncation = "fusion" if is_fused else "rand_trunc"
    transformers.ClapFeatureExtractor(**{**MEL, "truncation": truncation, **mel}).save_pretrained(directory)
    return model
