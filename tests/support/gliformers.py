"""Small models with fixed-seed weights, as gliformer saves them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_MAPPING

# Importing gliformer makes its own classes those of transformers' Qwen3, for all tests of the process.
_before = dict(MODEL_MAPPING._extra_content)
from gliformer import GLiFormer  # noqa: E402
from gliformer.tasks.span_decoder import SpanDecoder  # noqa: E402

MODEL_MAPPING._extra_content = _before

from tests.support.models import CONFIGS, save_tokenizer, set_apart  # noqa: E402

HEADS = ("ner", "classification", "joint_relex", "embedding")
librarys_spans = SpanDecoder._calculate_span_score


@contextmanager
def as_released() -> Iterator[None]:
    """Let the library find spans by its own function, not by ours."""
    ours, SpanDecoder._calculate_span_score = SpanDecoder._calculate_span_score, librarys_spans
    try:
        yield
    finally:
        SpanDecoder._calculate_span_score = ours


def save_gliformer(
    root: Path, tokenizer: Path, architecture: str = "bert", heads: tuple[str, ...] = HEADS, **config: Any
) -> GLiFormer:
    """`config` goes into gliner_config.json. Saved in root / "model"."""
    torch.manual_seed(5)
    save_tokenizer(root / "tokenizer", tokenizer)
    settings = {
        "model_name": str(root / "tokenizer"),
        "hidden_size": 64,
        "dropout": 0.0,
        "encoder_config": CONFIGS[architecture].to_dict(),
        "max_len": 128,
        "num_rnn_layers": 0,
        "default_ner_config": "ner" in heads,
        **{f"{head}_config": {} for head in heads},
        **config,
    }
    model = GLiFormer.load_from_config(settings, backbone_from_pretrained=False)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "token_rep_layer" not in name and parameter.ndim > 1:
                parameter *= 3  # so that scores are not all about 0.5
    set_apart(model.model.token_rep_layer.get_input_embeddings())
    model.eval().save_pretrained(root / "model", safe_serialization=True)
    return model
