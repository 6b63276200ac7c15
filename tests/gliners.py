"""Small models with fixed-seed weights, as gliner saves them."""

from pathlib import Path
from typing import Any

import torch
from gliner import GLiNER

from tests.models import CONFIGS, save_tokenizer

LABELS = ("person", "place of birth", "date", "organization", "größe", "日")


def save_gliner(root: Path, tokenizer: Path, architecture: str = "bert", kind: str = "span", **config: Any) -> GLiNER:
    """`kind`: span or token; `config` goes into gliner_config.json. Saved in root / "model"."""
    torch.manual_seed(5)
    save_tokenizer(root / "tokenizer", tokenizer)
    settings = {
        "model_name": str(root / "tokenizer"),
        "hidden_size": 64,
        "dropout": 0.0,
        "encoder_config": CONFIGS[architecture].to_dict(),
        "span_mode": {"span": "markerV0", "token": "token_level"}[kind],
        "max_width": 5,
        **config,
    }
    model = GLiNER.from_config(settings, backbone_from_pretrained=False)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "bert_layer" not in name and parameter.ndim > 1:
                parameter *= 3  # so that scores are not all about 0.5
    model.eval()
    model.save_pretrained(root / "model", safe_serialization=True)
    return model
