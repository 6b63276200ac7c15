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
