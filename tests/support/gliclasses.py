"""Small models with fixed-seed weights, as gliclass saves them."""

import copy
from pathlib import Path
from typing import Any

import torch
from gliclass import GLiClassModel, GLiClassModelConfig

from tests.support.models import CONFIGS, save_tokenizer, set_apart, sharpen

MARKERS = ("<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>")


def save_gliclass(
    root: Path, tokenizer: Path, architecture: str = "deberta", *, spread: float = 4, **config: Any
) -> Path:
    """`config` goes into config.json; the larger `spread`, the more logits differ."""
    torch.manual_seed(5)
    fast = save_tokenizer(root, tokenizer, model_input_names=["input_ids", "attention_mask"])
    fast.add_tokens(list(MARKERS), special_tokens=True)
    fast.save_pretrained(root)
    encoder = copy.deepcopy(CONFIGS[architecture])
    marker, end, example = fast.convert_tokens_to_ids(list(MARKERS))
    settings = {
        "encoder_config": encoder,
        "encoder_model": "none",
        "class_token_index": marker,
        "text_token_index": end,
        "example_token_index": example,
        "vocab_size": len(fast),
        "prompt_first": True,
        **config,
    }
    model = GLiClassModel(GLiClassModelConfig(**settings))
    sharpen(model.model.encoder_model)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "encoder_model" not in name and parameter.ndim > 1:
                parameter *= spread  # so that scores are not all about 0.5
    set_apart(model.model.encoder_model.get_input_embeddings())
    model.eval().save_pretrained(root)
    return root
