"""Small models with fixed-seed weights, saved as their users would save them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

SIZES = {"vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

CONFIGS: dict[str, Any] = {
    "bert": transformers.BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=512),
    # Little to compute and much to load.
    "wide": transformers.BertConfig(
        vocab_size=30522, hidden_size=1024, num_hidden_layers=1, num_attention_heads=16, intermediate_size=1024
    ),
    "roberta": transformers.RobertaConfig(**SIZES, intermediate_size=128, max_position_embeddings=514, pad_token_id=1),
    "xlm-roberta": transformers.XLMRobertaConfig(
        **SIZES, intermediate_size=128, max_position_embeddings=514, pad_token_id=1
    ),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=30522, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=512
    ),
}


def save_bert(directory: Path, tokenizer: Path, architecture: str = "bert", **options: Any) -> Path:
    """A sentence-transformers directory of a tiny encoder; `options` as for `build`."""
    build(directory / "encoder", tokenizer, architecture, **options).save(str(directory / "model"))
    return directory / "model"


def build(
    scratch: Path,
    tokenizer: Path,
    architecture: str = "bert",
    *,
    pooling: str | tuple[str, ...] = "mean",
    include_prompt: bool = True,
    dense: int | None = None,
    normalize: bool = True,
    prompts: dict[str, str] | None = None,
) -> SentenceTransformer:
    """Weights are scaled up so that attention is far from uniform and position matters."""
    torch.manual_seed(7)
    encoder = transformers.AutoModel.from_config(CONFIGS[architecture])
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if weight.ndim == 2:
                weight.mul_(8 if any(part in name for part in ("query", "key", "q_lin", "k_lin")) else 3)
    encoder.save_pretrained(scratch)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer / "tokenizer.json"),
        model_max_length=512,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    ).save_pretrained(scratch)
    modules: list[Any] = [
        Transformer(str(scratch)),
        Pooling(encoder.config.hidden_size, pooling, include_prompt=include_prompt),
    ]
    if dense is not None:
        modules.append(Dense(modules[-1].pooling_output_dimension, dense))
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
