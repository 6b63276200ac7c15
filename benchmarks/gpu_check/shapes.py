"""Models of published sizes with random weights, built on the device and saved in the published format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from benchmarks.architectures import sharpen
from benchmarks.gpu_check.scope import Plan

VOCABULARY = 30522
MAX_LENGTH = 512
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
    """A published size. `config` names transformers' class; `tiny` is what differs from TINY in a dry run.

    `lengths`: lengths of the items that are compared. A `packed_only` model has its own attention code, so our
    attention kernels and CUDA graphs do not apply. `sharpness` scales the weights of queries and keys.
    """

    config: str
    changes: Mapping[str, Any]
    tiny: Mapping[str, Any]
    lengths: tuple[int, ...]
    is_causal: bool = False
    packed_only: bool = False
    sharpness: float = 1.0


DEBERTA: Mapping[str, Any] = {
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
DEBERTA_V3 = Size("DebertaV2Config", DEBERTA, DEBERTA, (1, 7, 64, 300, 300, 512), packed_only=True)

SIZES: Mapping[str, Size] = {
    "BERT-base": Size("BertConfig", {}, {}, (1, 7, 64, 300, 300, 512)),
    "MiniLM-L6": Size(
        "BertConfig",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
        {},
        (1, 7, 64, 300, 300, 512),
    ),
    # Fast, with much memory per token.
    "BERT, wide": Size("BertConfig", {"num_hidden_layers": 2, "intermediate_size": 32768}, {}, ()),
    "DeBERTa-v3-base": DEBERTA_V3,
    # Unscaled products of queries and keys exceed the range of float16; products with positions, which the library
    # scales later, do not.
    "DeBERTa, large weights": replace(
        DEBERTA_V3,
        changes={**DEBERTA, "norm_rel_ebd": "none", "num_hidden_layers": 1},
        tiny={**DEBERTA, "norm_rel_ebd": "none", "num_hidden_layers": 1},
        sharpness=60.0,
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
    """Lengths of the items that are compared: beyond any window, neighbours of one length among them."""
    return (1, 2, 33, 35, 70, 70) if plan.is_dry else SIZES[name].lengths


def build(name: str, plan: Plan) -> Any:
    """A model on the device, in float32, with fresh weights."""
    torch.manual_seed(7)
    return _on(plan.device, config_of(name, plan)).eval()


def sharpened(name: str, plan: Plan) -> Any:
    """Build the model with weights that reveal a missing mask; scale queries and keys by its `sharpness`."""
    model = sharpen(build(name, plan))
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith(("query_proj.weight", "key_proj.weight")):
                weight.mul_(SIZES[name].sharpness)
    return model


def _on(device: str, config: Any) -> Any:
    """Build the model directly on `device`, which is faster than moving it."""
    from_config: Any = transformers.AutoModel.from_config
    with torch.device(device):
        return from_config(config)


def flops(name: str, plan: Plan, lengths: list[int]) -> float:
    """Return the operations (FLOP) of the matrix products for items of these lengths."""
    model = _on("meta", config_of(name, plan))
    layers = {part: module for part, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    weights = sum(layer.weight.numel() for part, layer in layers.items() if "pooler" not in part)
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = sum(n * n for n in lengths) * (0.5 if SIZES[name].is_causal else 1.0)
    per_pair: int = 4 * config.num_hidden_layers * config.num_attention_heads * width
    return 2.0 * weights * sum(lengths) + per_pair * pairs


def save(name: str, plan: Plan, scratch: Path) -> Path:
    """Save the model as sentence-transformers does, with a tokenizer whose tokens are words such as "w17"."""
    directory = scratch / "model"
    model = build(name, plan).to(dtype=getattr(torch, plan.precision), device="cpu")
    model.save_pretrained(directory)
    tokenizer = scratch / "tokenizer.json"
    tokenizer.write_text(json.dumps(_tokenizer()))
    special = {f"{each.lower().strip('[]')}_token": each for each in SPECIAL}
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_file=str(tokenizer), model_max_length=MAX_LENGTH, **special).save_pretrained(directory)
    pooling = "lasttoken" if SIZES[name].is_causal else "mean_tokens"
    for path, content in _modules(pooling, model.config.hidden_size).items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(json.dumps(content))
    return directory


def tokens_of(count: int) -> npt.NDArray[np.int32]:
    """Return the token ids of `text_of(count)`."""
    return np.array([SPECIAL.index("[CLS]"), *range(1000, 998 + count), SPECIAL.index("[SEP]")], np.int32)


def _modules(pooling: str, hidden_size: int) -> dict[str, Any]:
    """Return the contents of sentence-transformers' own files, by path."""
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(folders.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": hidden_size, f"pooling_mode_{pooling}": True},
        "2_Normalize/config.json": {},
    }


def text_of(tokens: int) -> str:
    """Return a text of `tokens` tokens, including the two that the tokenizer adds."""
    return " ".join(f"w{1000 + i}" for i in range(tokens - 2))


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
