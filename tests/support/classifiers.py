"""Small classifiers with fixed-seed weights, as transformers saves them."""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models import CONFIGS, save_tokenizer, sharpen

# Its decoder's last state is what the head reads.
BART = transformers.BartConfig(
    vocab_size=30522,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=101,
    eos_token_id=102,
    decoder_start_token_id=102,
    forced_eos_token_id=None,
)

# Decoders, whose head reads the last token.
LANGUAGE = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
DECODERS = {
    "llama": transformers.LlamaConfig(**LANGUAGE),
    "gemma2": transformers.Gemma2Config(**LANGUAGE, head_dim=16, sliding_window=16),
    **{name: CONFIGS[name] for name in ("qwen2", "qwen3", "gemma3")},
}

# Its attention has sinks and sees few tokens on each side, and its layers choose among experts.
PRIVACY_FILTER = transformers.OpenAIPrivacyFilterConfig(
    **LANGUAGE, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
)

TEXTS = [
    "I have a problem with my phone that needs to be resolved!",
    "",
    "x",
    "naïve 😀 日本語 — größe e-mail_adress; [x]",
    "The vine climbs the wall of the old house because its roots find hold in every gap.",
    "one two three four five six seven eight nine ten",
]


def pairs(found: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the label and the score of each class."""
    return [(each["label"], each["score"]) for each in found["classifications"]]


def save_classifier(
    root: Path,
    tokenizer: Path,
    architecture: str = "bert",
    *,
    labels: tuple[str, ...],
    spread: float = 10,
    kind: Any = transformers.AutoModelForSequenceClassification,
    **config: Any,
) -> Path:
    """Save a classifier. `labels` are in the order of its logits, which differ about `spread` times as much as random
    ones.
    """
    torch.manual_seed(7)
    settings = copy.deepcopy({**CONFIGS, **DECODERS, "bart": BART, "privacy-filter": PRIVACY_FILTER}[architecture])
    settings.id2label = dict(enumerate(labels))
    settings.label2id = {label: i for i, label in enumerate(labels)}
    for name, value in config.items():
        setattr(settings, name, value)
    model = kind.from_config(settings)
    sharpen(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.shape[0] == len(labels) and weight.ndim == 2:
                weight.mul_(spread)
    model.save_pretrained(root)
    # Only some tell the texts of a pair apart.
    types = ["token_type_ids"] if architecture in ("bert", "electra") else []
    save_tokenizer(root, tokenizer, model_input_names=["input_ids", "attention_mask", *types])
    return root
