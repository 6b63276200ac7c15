"""Small models of many architectures with fixed-seed weights, saved as sentence-transformers saves them.

The architectures are real, at a reduced size. Weights are scaled so that attention is far from uniform and positions
matter: with unscaled random weights, a missing mask or window would hardly show.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Config classes of transformers, and their arguments that differ from the common ones.
ARCHITECTURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("BertConfig", {}),
    "RoBERTa": ("RobertaConfig", {"pad_token_id": 1}),
    "XLM-RoBERTa": ("XLMRobertaConfig", {"pad_token_id": 1}),
    "CamemBERT": ("CamembertConfig", {"pad_token_id": 1}),
    "DistilBERT": ("DistilBertConfig", {}),
    "ELECTRA": ("ElectraConfig", {"embedding_size": 32}),
    "ERNIE": ("ErnieConfig", {}),
    "ALBERT": ("AlbertConfig", {"embedding_size": 32}),
    "ModernBERT, local and global": ("ModernBertConfig", {"local_attention": 32, "global_attn_every_n_layers": 3}),
    "EuroBERT": ("EuroBertConfig", {"pad_token_id": 0}),
    "NomicBERT": ("NomicBertConfig", {}),
    "GTE": ("GteConfig", {}),
    "Jina v3": ("JinaEmbeddingsV3Config", {}),
    "Qwen2, causal": ("Qwen2Config", {"grouped": True}),
    "Qwen3, causal": ("Qwen3Config", {"grouped": True}),
    "Llama, causal": ("LlamaConfig", {"grouped": True}),
    "Mistral, causal, window": ("MistralConfig", {"grouped": True, "sliding_window": 32}),
    "Phi-3, causal": ("Phi3Config", {"pad_token_id": 0}),
    "GPT-2, causal": ("GPT2Config", {}),
    "GPT-NeoX, causal": ("GPTNeoXConfig", {}),
    "Gemma 3, causal, window": ("Gemma3TextConfig", {"grouped": True, "sliding_window": 32}),
    "Gemma 3, both ways, window": (
        "Gemma3TextConfig",
        {"grouped": True, "sliding_window": 32, "use_bidirectional_attention": True},
    ),
    "Gemma 2, capped scores": ("Gemma2Config", {"grouped": True, "sliding_window": 32}),
    "MPNet": ("MPNetConfig", {"pad_token_id": 1}),
    "DeBERTa v2": ("DebertaV2Config", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "T5 encoder": ("T5Config", {"is_encoder_decoder": False}),
    "BLOOM, causal": ("BloomConfig", {}),
}

VOCABULARY = 30522  # vocabulary size of the demo model's tokenizer
MAX_LENGTH = 512
SHARPENED = ("query", "key", "q_proj", "k_proj", "q_lin", "k_lin", "qkv", "Wqkv", "c_attn", ".q.", ".k.", "_proj.q")


def build(architecture: str, *, hidden: int = 64, layers: int = 3, heads: int = 4, seed: int = 7) -> Any:
    """Return a transformers model of `architecture` with scaled random weights."""
    import torch
    import transformers

    name, changes = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**_sizes(name, hidden, layers, heads, **changes))
    torch.manual_seed(seed)
    from_config: Any = transformers.AutoModel.from_config
    model = transformers.T5EncoderModel(config) if name == "T5Config" else from_config(config)
    # T5 does not divide scores by the square root of their width, so that half the factor has the same effect.
    return sharpen(model, 4 if name == "T5Config" else 8).eval()


def sharpen(model: Any, factor: float = 8) -> Any:
    """Scale random weights in place; those of queries and keys by `factor`, others by 3."""
    import torch

    narrower = (64 / model.config.hidden_size) ** 0.5
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.mul_((factor if any(part in parameter for part in SHARPENED) else 3) * narrower)
    return model


def save(architecture: str, directory: Path, tokenizer: Path, **sizes: int) -> Path:
    """Save `build(architecture, **sizes)` with the tokenizer.json in `tokenizer`; return its directory.

    The directory is in sentence-transformers' format, below `directory`.
    """
    pooling = "lasttoken" if "causal" in architecture else "mean"
    return save_model(build(architecture, **sizes), directory, tokenizer / "tokenizer.json", pooling)


def save_model(model: Any, directory: Path, tokenizer: Path, pooling: str) -> Path:
    """Save a model in sentence-transformers' format below `directory`; `tokenizer` is a tokenizer.json."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    encoder = directory / "encoder"
    model.save_pretrained(encoder)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_file=str(tokenizer), model_max_length=MAX_LENGTH, **special).save_pretrained(encoder)
    modules = [Transformer(str(encoder)), Pooling(model.config.hidden_size, pooling), Normalize()]
    library = SentenceTransformer(modules=modules, device="cpu")
    library.save(str(directory / "model"))
    return directory / "model"


def _sizes(name: str, hidden: int, layers: int, heads: int, *, grouped: bool = False, **changes: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"vocab_size": VOCABULARY, **changes}
    if name == "DistilBertConfig":
        return common | {"dim": hidden, "n_layers": layers, "n_heads": heads, "hidden_dim": 4 * hidden}
    if name == "T5Config":
        heads_of = {"num_heads": heads, "d_kv": hidden // heads}
        return common | {"d_model": hidden, "d_ff": 4 * hidden, "num_layers": layers, **heads_of}
    if name == "GPT2Config":
        return common | {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": MAX_LENGTH}
    if name == "BloomConfig":
        return common | {"hidden_size": hidden, "n_layer": layers, "n_head": heads}
    common |= {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    common |= {"intermediate_size": 4 * hidden, "max_position_embeddings": MAX_LENGTH + 8}
    if name.startswith("Gemma"):
        kinds = ("sliding_attention", "full_attention")
        common["layer_types"] = [kinds[layer % 2] for layer in range(layers)]
    if grouped:
        common |= {"num_key_value_heads": heads // 2}
    if name in ("Qwen3Config", "Gemma2Config", "Gemma3TextConfig"):
        common["head_dim"] = hidden // heads
    if name == "ModernBertConfig":
        common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return common
