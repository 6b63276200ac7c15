"""Small models with fixed-seed weights, saved as their users would save them."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from benchmarks.texts import texts
from sie_triton.models.families.llm_reranker import FORMATS
from tests.support.copies import update

SIZES = {"vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}

DEBERTA: dict[str, Any] = {
    **SIZES,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 32,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
}
CONFIGS: dict[str, Any] = {
    "bert": transformers.BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=512),
    "modernbert": transformers.ModernBertConfig(
        **SIZES,
        intermediate_size=128,
        max_position_embeddings=512,
        local_attention=64,
        global_attn_every_n_layers=2,
        pad_token_id=0,
    ),
    # Little to compute and much to load.
    "wide": transformers.BertConfig(
        vocab_size=30522, hidden_size=1024, num_hidden_layers=1, num_attention_heads=16, intermediate_size=1024
    ),
    "roberta": transformers.RobertaConfig(**SIZES, intermediate_size=128, max_position_embeddings=514, pad_token_id=1),
    "xlm-roberta": transformers.XLMRobertaConfig(
        **SIZES,
        intermediate_size=128,
        max_position_embeddings=514,
        pad_token_id=1,
        bos_token_id=101,
        eos_token_id=102,
    ),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=30522, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=512
    ),
    "deberta": transformers.DebertaV2Config(**DEBERTA),
    # Its queries and keys read distances too, as those of DeBERTa-v3 do.
    "deberta-shared": transformers.DebertaV2Config(**DEBERTA, share_att_key=True, norm_rel_ebd="layer_norm"),
    "electra": transformers.ElectraConfig(
        **SIZES, embedding_size=64, intermediate_size=128, max_position_embeddings=512
    ),
    "albert": transformers.AlbertConfig(**SIZES, embedding_size=32, intermediate_size=128, max_position_embeddings=512),
    "gte": transformers.GteConfig(**SIZES, intermediate_size=128, max_position_embeddings=512, pad_token_id=0),
    "jina": transformers.JinaEmbeddingsV3Config(
        **SIZES, intermediate_size=128, max_position_embeddings=512, pad_token_id=1
    ),
    "gpt2": transformers.GPT2Config(vocab_size=30522, n_embd=64, n_layer=2, n_head=4, n_positions=512),
    # Multiplies its embeddings.
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES, intermediate_size=128, num_key_value_heads=2, head_dim=16, max_position_embeddings=512, pad_token_id=0
    ),
    "mpnet": transformers.MPNetConfig(**SIZES, intermediate_size=128, max_position_embeddings=514, pad_token_id=1),
    "qwen2": transformers.Qwen2Config(
        **SIZES, intermediate_size=128, num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0
    ),
    "qwen3": transformers.Qwen3Config(
        **SIZES, intermediate_size=128, num_key_value_heads=2, head_dim=16, max_position_embeddings=512, pad_token_id=0
    ),
}


def small_bert(width: int, intermediate: int, **sizes: Any) -> transformers.BertModel:
    """A BERT of two layers, two heads and 1,000 words, without a pooler."""
    torch.manual_seed(0)
    usual = {"vocab_size": 1000, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**usual | sizes, hidden_size=width, intermediate_size=intermediate)
    return transformers.BertModel(config, add_pooling_layer=False)


def save_bert(directory: Path, tokenizer: Path, architecture: str = "bert", **options: Any) -> Path:
    """A sentence-transformers directory of a tiny encoder; `options` as for `build`."""
    build(directory / "encoder", tokenizer, architecture, **options).save(
        str(directory / "model"), create_model_card=False
    )
    return directory / "model"


def without_weights(directory: Path, to: Path) -> Path:
    """Copy the small files of a model, which is what a server of remote models has."""
    return shutil.copytree(directory, to, ignore=shutil.ignore_patterns("*.safetensors"))


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
    """A sentence-transformers model over `save_encoder`."""
    encoder = save_encoder(scratch, tokenizer, architecture)
    modules: list[Any] = [
        Transformer(str(scratch)),
        Pooling(encoder.config.hidden_size, pooling, include_prompt=include_prompt),
    ]
    if dense is not None:
        modules.append(Dense(modules[-1].pooling_output_dimension, dense))
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, prompts=prompts, device="cpu")


def save_tokenizer(directory: Path, tokenizer: Path, **options: Any) -> transformers.PreTrainedTokenizerFast:
    """MiniLM's tokenizer, beside a model of any architecture; `options` as transformers takes them."""
    settings = {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "model_max_length": 512,
        **options,
    }
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"), **settings)
    fast.save_pretrained(directory)
    return fast


@torch.no_grad()
def set_apart(embeddings: torch.nn.Embedding) -> None:
    """Draw the rows of added tokens anew: transformers makes them so alike that one could stand in for another."""
    known = embeddings.weight[: SIZES["vocab_size"]]
    embeddings.weight[SIZES["vocab_size"] :].normal_(std=float(known.std()))


def save_splade(
    root: Path,
    tokenizer: Path,
    architecture: str = "bert",
    pooling: str = "max",
    activation: str = "relu",
    *,
    idf: bool = False,
) -> Path:
    """A SparseEncoder directory; with `idf` its queries need no forward pass."""
    torch.manual_seed(7)
    model = transformers.AutoModelForMaskedLM.from_config(CONFIGS[architecture])
    sharpen(model.base_model)
    model.save_pretrained(root / "encoder")
    fast = save_tokenizer(root / "encoder", tokenizer)
    modules: list[Any] = [Transformer(str(root / "encoder"), transformer_task="fill-mask")]
    modules.append(SpladePooling(pooling, activation))
    if idf:
        static = SparseStaticEmbedding(fast, weight=torch.rand(30522))
        modules = [Router.for_query_document(query_modules=[static], document_modules=modules)]
    SparseEncoder(modules=modules, device="cpu").save(str(root / "model"), create_model_card=False)
    return root / "model"


def save_pylate(root: Path, tokenizer: Path, **config: Any) -> Path:
    """Save a model as PyLate does: settings at the top, a Dense module of its own, masks and norms understood; 32
    dimensions.
    """
    root = root / "model"
    save_encoder(root, tokenizer, "bert")
    (root / "1_Dense").mkdir()
    torch.manual_seed(3)
    save_file({"linear.weight": torch.randn(32, 64)}, root / "1_Dense" / "model.safetensors")
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 64, "out_features": 32, "bias": False, "activation_function": identity}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 32,
        "document_length": 180,
        "attend_to_expansion_tokens": False,
        **config,
    }
    files = {
        "1_Dense/config.json": dense,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 180, "do_lower_case": False},
        "config_sentence_transformers.json": settings,
    }
    for name, content in files.items():
        (root / name).write_text(json.dumps(content))
    return root


def save_stanford(root: Path, tokenizer: Path, metadata: dict[str, Any] | None, architecture: str = "bert") -> Path:
    """Save a model as Stanford's ColBERT does: projection beside the encoder; no artifact.metadata if None; 32
    dimensions.
    """
    root = root / "model"
    encoder = save_encoder(root, tokenizer, architecture)
    weights = {f"{encoder.base_model_prefix}.{name}": weight for name, weight in encoder.state_dict().items()}
    torch.manual_seed(3)
    save_file({**weights, "linear.weight": torch.randn(32, 64)}, root / "model.safetensors")
    update(root / "config.json", architectures=["HF_ColBERT"])
    if metadata is not None:
        (root / "artifact.metadata").write_text(json.dumps(metadata))
    return root


def repooled(directory: Path, root: Path, pooling: str) -> Path:
    """A copy of a SentenceTransformer directory with another pooling: "cls", "max"."""
    shutil.copytree(directory, root)
    path = root / "1_Pooling" / "config.json"
    config = {key: False if isinstance(value, bool) else value for key, value in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(config | {f"pooling_mode_{pooling}_token{'s' * (pooling != 'cls')}": True}))
    return root


def save_cross_encoder(root: Path, tokenizer: Path, architecture: str = "bert", **config: Any) -> Path:
    """A CrossEncoder directory of a tiny model with one label; `config` goes into its config.json."""
    torch.manual_seed(7)
    settings = copy.deepcopy(CONFIGS[architecture])
    for name, value in {"num_labels": 1, **config}.items():
        setattr(settings, name, value)
    model = transformers.AutoModelForSequenceClassification.from_config(settings)
    sharpen(model)
    with torch.no_grad():
        # So that scores differ after the sigmoid too.
        for weight in model.parameters():
            if weight.shape[0] == 1 and weight.ndim == 2:
                weight.mul_(10)
    model.save_pretrained(root / "encoder")
    # Only some tell a model query from text.
    types = ["token_type_ids"] if architecture in ("bert", "electra") else []
    save_tokenizer(root / "encoder", tokenizer, model_input_names=["input_ids", "attention_mask", *types])
    CrossEncoder(str(root / "encoder"), device="cpu").save(str(root / "model"), create_model_card=False)
    return root / "model"


def save_causal(root: Path, tokenizer: Path, architecture: str = "qwen3") -> Path:
    """Save a causal language model, in the form of the LLM rerankers."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[architecture])
    sharpen(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    model.save_pretrained(root)
    if architecture == "qwen2":  # of which transformers always takes its own class
        save_qwen2_tokenizer(root)
    else:
        save_tokenizer(root, tokenizer)
    return root


def save_qwen2_tokenizer(directory: Path) -> Any:
    """Save a tokenizer of Qwen 2's kind, trained on the prompts of rerankers and on ordinary words."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    corpus = [f"{form.before} {form.after} {form.query} {form.text} yes no" for form in FORMATS.values()]
    bpe.train_from_iterator([*corpus, *texts(200, seed=1)], trainer)
    learned = json.loads(bpe.to_str())["model"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = learned["vocab"] | {token: len(learned["vocab"]) + i for i, token in enumerate(special)}
    made = transformers.Qwen2Tokenizer(vocab=vocab, merges=list(map(tuple, learned["merges"])))
    made.add_special_tokens({"additional_special_tokens": special[1:]})
    made.save_pretrained(directory)
    return made


def save_bge_m3(root: Path, tokenizer: Path, dim: int = 64, suffix: str = ".safetensors") -> Path:
    """Two float16 layers beside a dense model, and position ids that count from padding's 1. BAAI/bge-m3 is saved with
    the suffix .pt."""
    directory = save_bert(root, tokenizer, "xlm-roberta", pooling="cls")
    save_tokenizer(directory, tokenizer, pad_token="[unused0]", bos_token="[CLS]", eos_token="[SEP]")
    torch.manual_seed(11)
    for name, size in (("sparse_linear", 1), ("colbert_linear", dim)):
        layer = torch.nn.Linear(64, size).half().state_dict()
        path = directory / f"{name}{suffix}"
        torch.save(layer, path) if suffix == ".pt" else save_file(layer, path)
    return directory


def save_frames(directory: Path, bands: int = 8, max_frames: int = 256) -> Path:
    """Save a model of the family in tests/support/own_family."""
    directory.mkdir()
    np.savez(directory / "frames.npz", matrix=np.random.default_rng(5).normal(size=(4, bands)))
    (directory / "frames.json").write_text(json.dumps({"bands": bands, "max_frames": max_frames}))
    return directory


def save_encoder(directory: Path, tokenizer: Path, architecture: str) -> transformers.PreTrainedModel:
    """Save a transformers directory, with a tokenizer."""
    torch.manual_seed(7)
    encoder = transformers.AutoModel.from_config(CONFIGS[architecture])
    sharpen(encoder)
    encoder.save_pretrained(directory)
    save_tokenizer(directory, tokenizer)
    return encoder


def sharpen(encoder: transformers.PreTrainedModel) -> None:
    """Scale the weights up so that attention is far from uniform and position matters."""
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if weight.ndim == 2:
                weight.mul_(8 if any(part in name for part in ("query", "key", "q_lin", "k_lin")) else 3)
