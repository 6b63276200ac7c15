"""Reads the files of a directory saved by sentence-transformers (any version), or by transformers.

Standard library only: render and preprocess read these without torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.errors import LoadError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

# Written by sentence-transformers before 6; concatenated in this order when several are true.
LEGACY_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Their first token's position id is padding_idx + 1, so that as many positions are never used.
COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "xmod")

UNLIMITED = 10**6


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """One Dense module: `activation` is the dotted name of a torch.nn class."""

    directory: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class SentenceTransformerFiles:
    """What the files say, before any weight is read. Lengths are in tokens."""

    transformer: Path
    config: dict[str, Any]
    pooling: tuple[str, ...]
    include_prompt: bool
    dense: tuple[DenseLayer, ...]
    normalize: bool
    dim: int
    max_sequence_length: int
    do_lower_case: bool
    prompts: dict[str, str]
    default_prompt: str

    @classmethod
    def read(cls, directory: Path) -> "SentenceTransformerFiles":
        """Raises LoadError naming the file or the module that cannot be used."""
        modules = _read_json(directory / "modules.json", default=[{"type": "Transformer", "path": ""}])
        kinds = [(str(m["type"]).rpartition(".")[2], directory / m["path"]) for m in modules]
        transformer = _only(kinds, "Transformer", directory)
        config = _read_json(transformer / "config.json")
        pooling = _read_json(_only(kinds, "Pooling", directory) / "config.json") if len(kinds) > 1 else {}
        dense = tuple(_dense_layer(path) for kind, path in kinds if kind == "Dense")
        normalize = _check_order([kind for kind, _ in kinds if kind != "Dropout"], directory)
        sbert = _read_json(transformer / "sentence_bert_config.json", default={})
        prompts = _read_json(directory / "config_sentence_transformers.json", default={})
        modes = _pooling_modes(pooling)
        hidden = pooling.get("embedding_dimension") or pooling.get("word_embedding_dimension")
        return cls(
            transformer=transformer,
            config=config,
            pooling=modes,
            include_prompt=pooling.get("include_prompt", True),
            dense=dense,
            normalize=normalize,
            dim=dense[-1].out_features if dense else len(modes) * (hidden or _hidden_size(config)),
            max_sequence_length=_max_sequence_length(sbert, transformer, config),
            do_lower_case=sbert.get("do_lower_case", False),
            prompts=prompts.get("prompts") or {},
            default_prompt=(prompts.get("prompts") or {}).get(prompts.get("default_prompt_name"), ""),
        )


def _read_json(path: Path, default: Any = None) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as exc:
        if default is not None:
            return default
        raise LoadError(f"{path.name} is missing in {path.parent}", "not found") from exc
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {exc}", "corrupt") from exc


def _only(kinds: list[tuple[str, Path]], wanted: str, directory: Path) -> Path:
    found = [path for kind, path in kinds if kind == wanted]
    if len(found) != 1:
        raise LoadError(f"modules.json in {directory} must name one {wanted}, it names {len(found)}", "unsupported")
    return found[0]


def _check_order(kinds: list[str], directory: Path) -> bool:
    """True if the chain ends in Normalize."""
    normalize = kinds[-1] == "Normalize"
    middle = kinds[2:-1] if normalize else kinds[2:]
    if kinds[:2] not in (["Transformer", "Pooling"], ["Transformer"]) or set(middle) - {"Dense"}:
        raise LoadError(
            f"modules.json in {directory}: {' → '.join(kinds)} cannot be served; "
            "supported is Transformer → Pooling → Dense (any number) → Normalize (optional)",
            "unsupported",
        )
    return normalize


def _pooling_modes(pooling: dict[str, Any]) -> tuple[str, ...]:
    modes = pooling.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in LEGACY_POOLING_KEYS.items() if pooling.get(key)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        if mode not in POOLING_MODES:
            raise LoadError(
                f"pooling_mode {mode!r} is unknown; supported are {', '.join(POOLING_MODES)}", "unsupported"
            )
    return modes


def _dense_layer(path: Path) -> DenseLayer:
    config = _read_json(path / "config.json")
    inputs = {config.get("module_input_name", "sentence_embedding"), config.get("module_output_name")}
    if config.get("use_residual") or inputs - {"sentence_embedding", None}:
        raise LoadError(
            f"{path}: only Dense layers on sentence_embedding without residual are supported", "unsupported"
        )
    return DenseLayer(
        directory=path,
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=config.get("bias", True),
        activation=config.get("activation_function", "torch.nn.modules.activation.Tanh"),
    )


def _hidden_size(config: dict[str, Any]) -> int:
    size = next((config[name] for name in ("hidden_size", "dim", "d_model", "n_embd") if config.get(name)), None)
    if not size:
        raise LoadError("config.json names no hidden_size", "corrupt")
    return int(size)


def _max_sequence_length(sbert: dict[str, Any], transformer: Path, config: dict[str, Any]) -> int:
    tokenizer = _read_json(transformer / "tokenizer_config.json", default={})
    counts_from_padding = config.get("model_type") in COUNT_FROM_PADDING
    unused = int(config.get("pad_token_id") or 0) + 1 if counts_from_padding else 0
    positions = config.get("max_position_embeddings", UNLIMITED) - unused
    limit = sbert.get("max_seq_length") or tokenizer.get("model_max_length") or UNLIMITED
    return int(min(limit, positions))
