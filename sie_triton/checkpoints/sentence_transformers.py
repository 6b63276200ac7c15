"""Reader of the files of a dense or sparse model that sentence-transformers (any version) or transformers saved."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.architecture import MASKED_LM, default_pooling, head, is_bare
from sie_triton.checkpoints.files import Fields, inside
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.modules import (
    TRANSFORMERS,
    WIDTH_KEYS,
    DenseLayer,
    TextFiles,
    check_one_way,
    check_saved_as,
    check_task,
    check_widths,
    hidden_size,
    module_keys,
    modules_of,
    normalizes,
    only,
    saved_settings,
)
from sie_triton.checkpoints.transformer_settings import FILL_MASK, STATES
from sie_triton.errors import LoadError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

# Keys of sentence-transformers before 6. If several are true, their vectors are concatenated in this order.
LEGACY_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

SPLADE, STATIC = "SpladePooling", "SparseStaticEmbedding"


@dataclass(frozen=True, slots=True)
class SentenceTransformerFiles:
    """Files of a dense model, read without its weights."""

    text: TextFiles
    pooling: tuple[str, ...]
    dense: tuple[DenseLayer, ...]
    normalize: bool  # the embedding has unit length
    dim: int  # of the embedding
    is_declared: bool = True  # False: no file gives pooling and normalize, which are the library's defaults
    is_unit: bool = False  # the modules' output has unit length
    most: int | None = None  # first entries of the modules' output, which are the embedding; None: all

    @classmethod
    def read(cls, directory: Path, projection: str | None = None) -> "SentenceTransformerFiles":
        """Read the files; raise LoadError naming the file or module that cannot be used.

        `projection` is the directory of a Dense layer to use instead of those in modules.json.
        """
        text, kinds = TextFiles.read(directory), modules_of(directory)
        check_one_way(kinds, directory)
        if is_bare(directory):
            modes: tuple[str, ...] = (default_pooling(text.config),)
            return cls(text, modes, (), normalize=False, dim=hidden_size(text.config), is_declared=False)
        kinds = [(kind, path) for kind, path in kinds if kind != "Dropout"]
        normalize = _check_order([kind for kind, _ in kinds], directory) and normalizes(kinds[-1][1])
        check_saved_as(directory, ("SentenceTransformer",))
        check_task(text, STATES)
        pooling = module_keys("Pooling", only(kinds, ("Pooling",), directory))
        modes = _pooling_modes(pooling)
        folders = [path for kind, path in kinds if kind == "Dense"]
        if projection is not None:
            folders = [inside(directory, projection, "dense_projection_path")]
        dense = tuple(map(DenseLayer.read, folders))
        dim = _dim(text, pooling, modes, dense)
        kept = min(dim, saved_settings(directory).integer("truncate_dim", dim, least=1))
        if kept == dim:
            return cls(text, modes, dense, normalize, dim)
        return cls(text, modes, dense, normalize=False, dim=kept, is_unit=normalize, most=kept)

    @property
    def chain(self) -> str:
        """The modules, in words."""
        layers = [f"Dense ({layer.out_features})" for layer in self.dense]
        last = ["Normalize"] if self.normalize or self.is_unit else []
        last += [f"the first {self.dim} entries"] if self.is_unit else []
        return ", ".join(["Transformer", f"Pooling ({', '.join(self.pooling)})", *layers, *last])


@dataclass(frozen=True, slots=True)
class SparseEncoderFiles:
    """Files of a SPLADE model."""

    text: TextFiles
    dim: int
    pooling: str
    activation: str
    idf: Path | None  # a weight for each token, and a tokenizer, if queries need no forward pass
    looks_up: bool  # texts without a role are read as queries are
    most: int  # largest weights that a text keeps; 0: all

    @classmethod
    def read(cls, directory: Path) -> "SparseEncoderFiles":
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        text = TextFiles.read(directory)
        config = _splade_pooling(text, directory)
        idf = _query_weights(directory)
        saved = saved_settings(directory)
        return cls(
            text=text,
            dim=text.config.integer("vocab_size", least=1),
            pooling=config.one_of("pooling_strategy", ("max", "sum")),
            activation=config.one_of("activation_function", ("relu", "log1p_relu")),
            idf=idf,
            looks_up=idf is not None and modules_of(directory, None) == modules_of(directory, "query"),
            most=saved.integer("max_active_dims", least=1) if saved.has("max_active_dims") else 0,
        )

    @property
    def chain(self) -> str:
        """The modules, in words."""
        queries = f"; queries {STATIC}" if self.idf is not None else ""
        kept = f"; {self.most} largest weights" if self.most else ""
        return f"Transformer, {SPLADE} ({self.pooling}, {self.activation}){queries}{kept}"


def _splade_pooling(text: TextFiles, directory: Path) -> Fields:
    """Return the settings of SpladePooling.

    They are empty for a bare masked language model, for which SparseEncoder uses its defaults.
    """
    kinds = modules_of(directory)
    if is_bare(directory) and head(text.config) == MASKED_LM:
        return Fields("", {})
    if [kind for kind, _ in kinds] not in ([*TRANSFORMERS[:1], SPLADE], [*TRANSFORMERS[1:], SPLADE]):
        names = " → ".join(kind for kind, _ in kinds)
        message = f"modules.json in {directory}: {names} cannot be served; supported is Transformer → {SPLADE}"
        raise LoadError(message, "unsupported")
    check_saved_as(directory, ("SparseEncoder",))
    check_task(text, FILL_MASK)
    return module_keys(SPLADE, only(kinds, (SPLADE,), directory))


def _query_weights(directory: Path) -> Path | None:
    """Return the directory of the weights with which queries are looked up; None if they need a forward pass."""
    queries, documents, others = (modules_of(directory, route) for route in ("query", "document", None))
    static = [path for kind, path in queries if kind == STATIC]
    if queries != documents and (len(static) != 1 or len(queries) != 1):
        message = f"{directory}: queries must go through the same modules as documents, or through a single {STATIC}"
        raise LoadError(message, "unsupported")
    if others not in (queries, documents, []):
        raise LoadError(f"{directory}: texts without a role go through modules of their own", "unsupported")
    if static:
        module_keys(STATIC, static[0], required=False)
    return static[0] if static else None


def _dim(text: TextFiles, pooling: Fields, modes: tuple[str, ...], dense: tuple[DenseLayer, ...]) -> int:
    """Return the size of a vector. Pooling's file, which the library ignores, counts if config.json has no size."""
    said = next(filter(pooling.has, ("embedding_dimension", "word_embedding_dimension")), None)
    if said is None or any(map(text.config.has, WIDTH_KEYS)):
        width = hidden_size(text.config)
    else:
        width = pooling.integer(said, least=1, most=LIMITS.max_width)
    check_widths(dense, len(modes) * width)
    return dense[-1].out_features if dense else len(modes) * width


def _check_order(kinds: list[str], directory: Path) -> bool:
    """Return True if the chain of modules ends in Normalize; raise LoadError if the chain cannot be served."""
    normalize = kinds[-1] == "Normalize"
    middle = kinds[2:-1] if normalize else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(middle) - {"Dense"}:
        raise LoadError(
            f"modules.json in {directory}: {' → '.join(kinds)} cannot be served; "
            "supported is Transformer → Pooling → Dense (any number) → Normalize (optional)",
            "unsupported",
        )
    return normalize


def _pooling_modes(pooling: Fields) -> tuple[str, ...]:
    if not pooling.has("pooling_mode"):
        return tuple(mode for key, mode in LEGACY_POOLING_KEYS.items() if pooling.flag(key, False)) or ("mean",)
    modes = pooling.texts("pooling_mode")
    for mode in modes:
        if mode not in POOLING_MODES:
            raise pooling.unserved(f"pooling_mode {mode!r} is unknown; supported are {', '.join(POOLING_MODES)}")
    if not modes:
        raise pooling.corrupt(f"pooling_mode: must name at least one of {', '.join(POOLING_MODES)}")
    return modes
