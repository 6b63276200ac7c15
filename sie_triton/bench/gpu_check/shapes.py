"""Published sizes with random weights, made on the device, and saved as their users would have them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from sie_triton.bench.architectures import save_model
from sie_triton.bench.gpu_check.scope import Plan

VOCABULARY = 30522
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}


@dataclass(frozen=True, slots=True)
class Size:
    """`config` names transformers' class; `tiny` is what differs from TINY in a dry run. `lengths` are compared."""

    config: str
    changes: Mapping[str, Any]
    tiny: Mapping[str, Any]
    lengths: tuple[int, ...]
    is_causal: bool = False


SIZES: Mapping[str, Size] = {
    "BERT-base": Size("BertConfig", {}, {}, (1, 7, 64, 300, 300, 512)),
    "BERT-large": Size(
        "BertConfig",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        {},
        (1, 7, 64, 300, 300, 512),
    ),
    # A window of 128 tokens in two layers of three.
    "ModernBERT-base": Size(
        "ModernBertConfig",
        {},
        {"local_attention": 32, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3},
        (1, 65, 130, 300, 1024, 1500),
    ),
    "Qwen3-0.6B": Size(
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "pad_token_id": 0,
        },
        {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0},
        (1, 65, 130, 300, 512, 1024),
        is_causal=True,
    ),
}


def config_of(name: str, plan: Plan) -> Any:
    """A transformers configuration."""
    size = SIZES[name]
    return getattr(transformers, size.config)(**({**TINY, **size.tiny} if plan.is_dry else size.changes))


def lengths_of(name: str, plan: Plan) -> tuple[int, ...]:
    """Of the items that are compared: beyond any window, neighbours of one length among them."""
    return (1, 2, 33, 35, 70, 70) if plan.is_dry else SIZES[name].lengths


def build(name: str, plan: Plan) -> Any:
    """On the device, in float32, with fresh weights."""
    torch.manual_seed(7)
    return _on(plan.device, config_of(name, plan)).eval()


def _on(device: str, config: Any) -> Any:
    """Its weights are made there, which is faster than moving them."""
    from_config: Any = transformers.AutoModel.from_config
    with torch.device(device):
        return from_config(config)


def flops(name: str, plan: Plan, lengths: list[int]) -> float:
    """Of the matrix products for items of these lengths."""
    model = _on("meta", config_of(name, plan))
    layers = {part: module for part, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    weights = sum(layer.weight.numel() for part, layer in layers.items() if "pooler" not in part)
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = sum(n * n for n in lengths) * (0.5 if SIZES[name].is_causal else 1.0)
    per_pair: int = 4 * config.num_hidden_layers * config.num_attention_heads * width
    return 2.0 * weights * sum(lengths) + per_pair * pairs


def save(name: str, plan: Plan, scratch: Path) -> Path:
    """A sentence-transformers directory, whose tokenizer makes a token of each word "w17"."""
    tokenizer = scratch / "tokenizer.json"
    tokenizer.write_text(json.dumps(_tokenizer()))
    model = build(name, plan).to(dtype=getattr(torch, plan.precision), device="cpu")
    return save_model(model, scratch, tokenizer, "lasttoken" if SIZES[name].is_causal else "mean")


def _tokenizer() -> dict[str, Any]:
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    vocabulary |= {f"w{i}": i for i in range(len(SPECIAL), VOCABULARY)}
    around = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]")]
    single = [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]]
    ids = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, token in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": ids},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
