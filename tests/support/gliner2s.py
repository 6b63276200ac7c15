"""Small models with fixed-seed weights, as gliner2 saves them."""

from pathlib import Path
from typing import Any

import torch
from gliner2 import BoundaryExtractor, GLiNER2
from gliner2.configuration import ExtractorConfig
from gliner2.models.base import load_extractor_tokenizer

from tests.support.models import CONFIGS, save_tokenizer, set_apart


def save_gliner2(root: Path, tokenizer: Path, architecture: str = "bert", scale: float = 2.0, **config: Any) -> GLiNER2:
    """`config` goes into config.json; `scale`: of the heads, lest all scores be about 0.5. Saved in root / "model"."""
    torch.manual_seed(5)
    save_tokenizer(root / "tokenizer", tokenizer)
    encoder = type(CONFIGS[architecture]).from_dict(CONFIGS[architecture].to_dict())
    settings = ExtractorConfig(model_name=str(root / "tokenizer"), **{"max_width": 5, **config})
    fast = load_extractor_tokenizer(str(root / "tokenizer"))
    model = GLiNER2(settings, encoder_config=encoder, tokenizer=fast).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder") and parameter.ndim > 1:
                parameter *= scale
        model.count_pred[-1].bias[5:] = -100.0  # a few of each structure
        model.count_pred[-1].bias[0] -= 2.0
    set_apart(model.encoder.get_input_embeddings())
    model.save_pretrained(str(root / "model"))
    return model


def save_boundary(root: Path, tokenizer: Path, architecture: str = "bert", **config: Any) -> BoundaryExtractor:
    """The same of the architecture `boundary`."""
    torch.manual_seed(5)
    save_tokenizer(root / "tokenizer", tokenizer)
    encoder = type(CONFIGS[architecture]).from_dict(CONFIGS[architecture].to_dict())
    settings = ExtractorConfig(model_name=str(root / "tokenizer"), architecture="boundary", **config)
    fast = load_extractor_tokenizer(str(root / "tokenizer"))
    model = BoundaryExtractor(settings, encoder_config=encoder, tokenizer=fast).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder") and parameter.ndim > 1:
                parameter *= 2  # so that scores are not all about 0.5
    set_apart(model.encoder.get_input_embeddings())
    model.save_pretrained(str(root / "model"))
    return model
