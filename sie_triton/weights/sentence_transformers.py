"""Reads the files of a directory saved by sentence-transformers (any version), or by transformers.

Standard library only: render and preprocess read these without torch.
"""

import json
import string
from dataclasses import dataclass, replace
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

# The second is what sentence-transformers before 6 called one with a masked-language-model head.
TRANSFORMERS = ("Transformer", "MLMTransformer")
SPLADE, STATIC = "SpladePooling", "SparseStaticEmbedding"

# Files beside config.json, .pt or .safetensors: see bge_m3.py.
BGE_M3_LAYERS = ("sparse_linear", "colbert_linear")

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
class TextFiles:
    """What every such directory says of its transformer and its prompts. Lengths are in tokens."""

    transformer: Path
    config: dict[str, Any]
    include_prompt: bool
    max_sequence_length: int
    do_lower_case: bool
    prompts: dict[str, str]
    default_prompt: str

    @classmethod
    def read(cls, directory: Path) -> "TextFiles":
        """Raises LoadError naming the file that cannot be used."""
        kinds = modules_of(directory)
        transformer = _only(kinds, TRANSFORMERS, directory)
        config = read_json(transformer / "config.json")
        sbert = read_json(transformer / "sentence_bert_config.json", default={})
        prompts = read_json(directory / "config_sentence_transformers.json", default={})
        pooling: Any = next((read_json(path / "config.json") for kind, path in kinds if kind == "Pooling"), {})
        return cls(
            transformer=transformer,
            config=config,
            include_prompt=pooling.get("include_prompt", True),
            max_sequence_length=_max_sequence_length(sbert, transformer, config),
            do_lower_case=sbert.get("do_lower_case", False),
            prompts=prompts.get("prompts") or {},
            default_prompt=(prompts.get("prompts") or {}).get(prompts.get("default_prompt_name"), ""),
        )


@dataclass(frozen=True, slots=True)
class SentenceTransformerFiles:
    """A dense model's files: what they say before any weight is read."""

    text: TextFiles
    pooling: tuple[str, ...]
    dense: tuple[DenseLayer, ...]
    normalize: bool
    dim: int

    @classmethod
    def read(cls, directory: Path) -> "SentenceTransformerFiles":
        """Raises LoadError naming the file or the module that cannot be used."""
        text, kinds = TextFiles.read(directory), modules_of(directory)
        pooling = read_json(_only(kinds, ("Pooling",), directory) / "config.json") if len(kinds) > 1 else {}
        dense = tuple(_dense_layer(path) for kind, path in kinds if kind == "Dense")
        normalize = _check_order([kind for kind, _ in kinds if kind != "Dropout"], directory)
        modes = _pooling_modes(pooling)
        hidden = pooling.get("embedding_dimension") or pooling.get("word_embedding_dimension")
        return cls(
            text=text,
            pooling=modes,
            dense=dense,
            normalize=normalize,
            dim=dense[-1].out_features if dense else len(modes) * (hidden or hidden_size(text.config)),
        )


@dataclass(frozen=True, slots=True)
class SparseEncoderFiles:
    """A SPLADE model's files. `idf`, if queries need no forward pass, holds a weight for each token."""

    text: TextFiles
    dim: int
    pooling: str
    activation: str
    idf: Path | None

    @classmethod
    def read(cls, directory: Path) -> "SparseEncoderFiles":
        """Raises LoadError naming the file or the module that cannot be used."""
        text, kinds = TextFiles.read(directory), modules_of(directory)
        if [kind for kind, _ in kinds] not in ([*TRANSFORMERS[:1], SPLADE], [*TRANSFORMERS[1:], SPLADE]):
            names = " → ".join(kind for kind, _ in kinds)
            message = f"modules.json in {directory}: {names} cannot be served; supported is Transformer → {SPLADE}"
            raise LoadError(message, "unsupported")
        config = read_json(_only(kinds, (SPLADE,), directory) / "config.json")
        queries = modules_of(directory, "query")
        static = [path for kind, path in queries if kind == STATIC]
        if queries != kinds and (len(static) != 1 or len(queries) != 1):
            message = f"{directory}: queries must go the way of documents, or through one {STATIC}"
            raise LoadError(message, "unsupported")
        return cls(
            text=text,
            dim=int(text.config.get("vocab_size") or 0),
            pooling=_one_of(config, "pooling_strategy", ("max", "sum")),
            activation=_one_of(config, "activation_function", ("relu", "log1p_relu")),
            idf=static[0] if static else None,
        )


@dataclass(frozen=True, slots=True)
class Expansion:
    """Queries are filled up to `length` tokens with `token` (empty: the tokenizer's mask, else its end of sequence).

    `is_ceiling`: longer ones are cut to it. `attend`: the encoder looks at what was filled in.
    """

    length: int
    is_ceiling: bool
    attend: bool
    token: str


@dataclass(frozen=True, slots=True)
class MultiVectorFiles:
    """A late-interaction model's files; `read` knows what sentence-transformers (MultiVectorEncoder) or PyLate save,
    and stanford_colbert.py the others.

    `query_length`, `document_length`: 0 for that of the transformer. `markers` are prompts, or their first words,
    that are one token where the tokenizer knows them. Tokens of `skipped` words give no vector in the roles
    `skipped_in`.
    """

    text: TextFiles
    dim: int
    dense: tuple[DenseLayer, ...]
    normalize: bool
    query_length: int
    document_length: int
    expansion: Expansion | None
    markers: tuple[str, ...]
    skipped: tuple[str, ...]
    skipped_in: tuple[str, ...]

    @classmethod
    def read(cls, directory: Path) -> "MultiVectorFiles":
        """Raises LoadError naming the file or the module that cannot be used."""
        text, kinds = TextFiles.read(directory), modules_of(directory)
        names = [kind for kind, _ in kinds]
        if names[:1] != ["Transformer"] or set(names[1:]) - {"Dense", "MultiVectorMask", "Normalize", "Dropout"}:
            raise LoadError(
                f"modules.json in {directory}: {' → '.join(names)} cannot be served; "
                "supported is Transformer → Dense (any number) → MultiVectorMask → Normalize",
                "unsupported",
            )
        saved = read_json(directory / "config_sentence_transformers.json", default={})
        own = read_json(text.transformer / "sentence_bert_config.json", default={})
        settings = {**saved, **{key: value for key, value in own.items() if value is not None}}
        is_pylate = saved.get("model_type") == "ColBERT"
        masks = [read_json(path / "config.json") for kind, path in kinds if kind == "MultiVectorMask"]
        punctuation = list(string.punctuation) if is_pylate else []
        mask = masks[0] if masks else {"skiplist_words": saved.get("skiplist_words", punctuation)}
        dense = tuple(_dense_layer(path, "token_embeddings") for kind, path in kinds if kind == "Dense")
        markers = {role: saved.get(f"{role}_prefix") or "" for role in ("query", "document")}
        prompts = {
            role: marker + text.prompts.get(role, "").removeprefix(marker) if marker else text.prompts.get(role, "")
            for role, marker in markers.items()
        }
        return cls(
            # Without a role a text is a document.
            text=replace(text, prompts=prompts, default_prompt=text.default_prompt or prompts["document"]),
            dim=dense[-1].out_features if dense else hidden_size(text.config),
            dense=dense,
            normalize=is_pylate or "Normalize" in names,
            query_length=int(settings.get("query_length") or 0),
            document_length=int(settings.get("document_length") or 0),
            expansion=_expansion(settings, is_pylate),
            markers=tuple(filter(None, markers.values())),
            skipped=tuple(mask.get("skiplist_words") or ()),
            skipped_in=_strings(mask.get("skiplist_tasks"), ("document",)),
        )


def _expansion(settings: dict[str, Any], is_pylate: bool) -> Expansion | None:
    """Of today's form, or PyLate's, which expands unless told otherwise."""
    given = settings.get("query_expansion")
    if given is None:
        if "query_expansion" in settings or not is_pylate or settings.get("do_query_expansion") is False:
            return None
        attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
        given = {"strategy": "fixed", "attend": bool(attend), "length": settings.get("query_length") or 32}
    return Expansion(
        length=int(given["length"]),
        is_ceiling=_one_of(given, "strategy", ("fixed", "min")) == "fixed",
        attend=bool(given.get("attend", False)),
        token=str(given.get("token") or ""),
    )


def _strings(value: Any, default: tuple[str, ...]) -> tuple[str, ...]:
    if value is None:
        return default
    return (value,) if isinstance(value, str) else tuple(value)


def modules_of(directory: Path, route: str = "document") -> list[tuple[str, Path]]:
    """Class name and directory of each module, in order; of a Router, those of that route."""
    modules = read_json(directory / "modules.json", default=[{"type": "Transformer", "path": ""}])
    kinds = [(str(m["type"]).rpartition(".")[2], directory / m["path"]) for m in modules]
    if [kind for kind, _ in kinds] != ["Router"]:
        return kinds
    router = read_json(kinds[0][1] / "router_config.json")
    types = router.get("types", {})
    paths = router.get("structure", {}).get(route, [])
    return [(str(types[path]).rpartition(".")[2], kinds[0][1] / path) for path in paths]


def _one_of(config: dict[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    """The first of `allowed` where the file does not say."""
    value = str(config.get(key) or allowed[0])
    if value not in allowed:
        raise LoadError(f"{key} {value!r} is unknown; supported are {', '.join(allowed)}", "unsupported")
    return value


def read_json(path: Path, default: Any = None) -> Any:
    """Its content, or `default` where there is no such file; LoadError names what is missing or cannot be read."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as exc:
        if default is not None:
            return default
        raise LoadError(f"{path.name} is missing in {path.parent}", "not found") from exc
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {exc}", "corrupt") from exc


def _only(kinds: list[tuple[str, Path]], wanted: tuple[str, ...], directory: Path) -> Path:
    found = [path for kind, path in kinds if kind in wanted]
    if len(found) != 1:
        raise LoadError(f"modules.json in {directory} must name one {wanted[0]}, it names {len(found)}", "unsupported")
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


def _dense_layer(path: Path, on: str = "sentence_embedding") -> DenseLayer:
    config = read_json(path / "config.json")
    inputs = {config.get("module_input_name", on), config.get("module_output_name")}
    if config.get("use_residual") or inputs - {on, None}:
        raise LoadError(f"{path}: only Dense layers on {on} without residual are supported", "unsupported")
    return DenseLayer(
        directory=path,
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=config.get("bias", True),
        activation=config.get("activation_function", "torch.nn.modules.activation.Tanh"),
    )


def hidden_size(config: dict[str, Any]) -> int:
    """Entries of a token's state, by config.json."""
    size = next((config[name] for name in ("hidden_size", "dim", "d_model", "n_embd") if config.get(name)), None)
    if not size:
        raise LoadError("config.json names no hidden_size", "corrupt")
    return int(size)


def _max_sequence_length(sbert: dict[str, Any], transformer: Path, config: dict[str, Any]) -> int:
    tokenizer = read_json(transformer / "tokenizer_config.json", default={})
    counts_from_padding = config.get("model_type") in COUNT_FROM_PADDING
    unused = int(config.get("pad_token_id") or 0) + 1 if counts_from_padding else 0
    positions = config.get("max_position_embeddings", UNLIMITED) - unused
    limit = sbert.get("max_seq_length") or tokenizer.get("model_max_length") or UNLIMITED
    return int(min(limit, positions))
