"""Settings common to all directories that sentence-transformers (any version) or transformers saved.

Standard library only: render and preprocess read these without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.contents import read_config
from sie_triton.checkpoints.files import Fields, inside, read_fields, read_json, shortened
from sie_triton.errors import LoadError

# Architectures whose position ids begin at padding_idx + 1, so that this many positions are never used.
COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec-text", "xmod")

# MLMTransformer is the name before sentence-transformers 6 of a transformer with a masked-language-model head.
TRANSFORMERS = ("Transformer", "MLMTransformer")

UNLIMITED = 10**6

# More layers than any model has; building them takes minutes before a single weight is read.
MAX_LAYERS = 1000
MAX_WIDTH = 1_000_000

# More modules than any model has, and a longer name than any class has: errors name them all.
MAX_MODULES, MAX_NAME = 20, 100

# Names of the same setting in different architectures.
LAYER_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
WIDTH_KEYS = ("hidden_size", "dim", "d_model", "n_embd")
HEAD_KEYS = ("num_attention_heads", "n_heads", "n_head")

TANH = "torch.nn.modules.activation.Tanh"

# File names of a Transformer module's settings: sentence-transformers before 2 named them by architecture.
SETTINGS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ITS_STATES = ("last_hidden_state", "logits")

# Arguments of transformers' tokenizers that sentence_bert_config.json may set. None of them names code or another file.
TOKENIZER_KWARGS = (
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "additional_special_tokens",
    "bos_token",
    "clean_up_tokenization_spaces",
    "cls_token",
    "do_lower_case",
    "eos_token",
    "extra_special_tokens",
    "mask_token",
    "model_input_names",
    "model_max_length",
    "pad_token",
    "padding_side",
    "sep_token",
    "split_special_tokens",
    "strip_accents",
    "tokenize_chinese_chars",
    "trim_offsets",
    "truncation_side",
    "unk_token",
)

# Arguments that choose what is downloaded, or which implementation runs; of a directory they change nothing.
OF_THE_HUB = (
    "cache_dir",
    "code_revision",
    "force_download",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
    "use_fast",
)

# Most special tokens that sentence_bert_config.json may add, and most characters of one.
MAX_TOKENS, MAX_TOKEN = 10_000, 1000

# Settings passed to transformers that have no effect here.
WITHOUT_EFFECT = (
    *OF_THE_HUB,
    "model_max_length",
    "padding_side",
    "attn_implementation",
    "dtype",
    "torch_dtype",
)


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Settings of the transformer and its prompts. Lengths are in tokens.

    `default_prompt` is for texts that are marked neither as queries nor as documents. `tokenizer_kwargs` are arguments
    for transformers' tokenizer, over those of tokenizer_config.json: strings, numbers, booleans and lists of strings.
    """

    transformer: Path
    config: Fields
    include_prompt: bool
    max_sequence_length: int
    do_lower_case: bool
    prompts: dict[str, str]
    default_prompt: str
    tokenizer_kwargs: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> "TextFiles":
        """Read the files; raise LoadError naming the one that cannot be used."""
        kinds = modules_of(directory)
        transformer = only(kinds, TRANSFORMERS, directory)
        config = read_config(transformer)
        for name in (*LAYER_KEYS, *WIDTH_KEYS, *HEAD_KEYS):
            config.integer(name, 1, least=1, most=MAX_LAYERS if name in LAYER_KEYS else MAX_WIDTH)
        sbert = transformer_settings(transformer)
        _check_settings(sbert)
        saved = read_fields(directory / "config_sentence_transformers.json", required=False)
        pooling = next((read_fields(path / "config.json") for kind, path in kinds if kind == "Pooling"), Fields("", {}))
        prompts = saved.text_map("prompts")
        return cls(
            transformer=transformer,
            config=config,
            include_prompt=pooling.flag("include_prompt", True),
            max_sequence_length=_max_sequence_length(sbert, transformer, config),
            do_lower_case=sbert.flag("do_lower_case", False),
            prompts=prompts,
            default_prompt=default_prompt(saved, prompts),
            tokenizer_kwargs=_tokenizer_kwargs(sbert),
        )


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A Dense module. `activation` is the dotted name of a torch.nn class."""

    directory: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str

    @classmethod
    def read(cls, path: Path, on: str = "sentence_embedding") -> "DenseLayer":
        """Read the settings of a module that works on the output `on`."""
        config = read_fields(path / "config.json")
        names = {config.text("module_input_name", on), config.text("module_output_name", on)}
        if config.flag("use_residual", False) or names != {on}:
            raise LoadError(f"{path}: only Dense layers on {on} without residual are supported", "unsupported")
        return cls(
            directory=path,
            in_features=config.integer("in_features", least=1, most=MAX_WIDTH),
            out_features=config.integer("out_features", least=1, most=MAX_WIDTH),
            bias=config.flag("bias", True),
            activation=config.text("activation_function", TANH),
        )


def check_widths(layers: Sequence[DenseLayer], width: int) -> None:
    """Raise LoadError unless the first layer takes so many features, and each other one what the one before gives."""
    for layer in layers:
        if layer.in_features != width:
            message = f"{layer.directory}: in_features is {layer.in_features}, but the modules before it give {width}"
            raise LoadError(message, "corrupt")
        width = layer.out_features


def modules_of(directory: Path, route: str = "document") -> list[tuple[str, Path]]:
    """Return class name and directory of each module, in order; for a Router, the modules of that route."""
    path = directory / "modules.json"
    entries = read_json(path, default=[{"type": "Transformer", "path": ""}])
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_MODULES:
        raise LoadError(f"{path}: must be a list of 1 to {MAX_MODULES} modules", "corrupt")
    kinds = [_module(f"{path}: module {i}", entry, directory) for i, entry in enumerate(entries)]
    if [kind for kind, _ in kinds] != ["Router"]:
        return kinds
    home = kinds[0][1]
    router = read_fields(home / "router_config.json")
    types, routes = router.text_map("types"), router.fields("structure")
    named = routes.texts(route)
    if set(named) - set(types) or len(named) > MAX_MODULES:
        message = f"{routes.where}: {route}: names modules that are missing in types, or more than {MAX_MODULES}"
        raise LoadError(message, "corrupt")
    where = f"{routes.where}: {route}"
    return [(_class_name(types[each], where), inside(home, each, where)) for each in named]


def check_one_way(kinds: list[tuple[str, Path]], directory: Path) -> None:
    """Raise LoadError if a Router sends queries through other modules than `kinds`, those of documents."""
    if modules_of(directory, "query") != kinds:
        message = f"{directory}: queries and documents go through different modules"
        raise LoadError(f"{message}; this family needs the same modules for both", "unsupported")


def transformer_settings(transformer: Path) -> Fields:
    """Return the settings in the first of the settings files that exists; empty if none does."""
    files = (read_fields(transformer / f"sentence_{name}_config.json", required=False) for name in SETTINGS)
    return next((found for found in files if found.values), Fields(str(transformer), {}))


def _module(where: str, entry: Any, directory: Path) -> tuple[str, Path]:
    fields = Fields.of(where, entry)
    return _class_name(fields.text("type"), where), inside(directory, fields.text("path"), f"{where}: path")


def _class_name(dotted: str, where: str) -> str:
    name = dotted.rpartition(".")[2]
    if not name.isidentifier() or len(name) > MAX_NAME:
        raise LoadError(f"{where}: {dotted[:80]!r} is not the name of a class", "corrupt")
    return name


def only(kinds: list[tuple[str, Path]], wanted: tuple[str, ...], directory: Path) -> Path:
    """Return the directory of the only module of these kinds."""
    found = [path for kind, path in kinds if kind in wanted]
    if len(found) != 1:
        chain = " → ".join(kind for kind, _ in kinds) or "nothing"
        message = f"modules.json in {directory}: {chain} cannot be served; it must have exactly one {wanted[0]}"
        raise LoadError(message, "unsupported")
    return found[0]


def hidden_size(config: Fields) -> int:
    """Return the size of a token's state, from config.json."""
    name = next(filter(config.has, WIDTH_KEYS), None)
    if name is None:
        raise LoadError(f"{config.where}: hidden_size is missing", "corrupt")
    return config.integer(name, least=1, most=MAX_WIDTH)


def default_prompt(saved: Fields, prompts: dict[str, str]) -> str:
    """Return the prompt of texts without a role; raise LoadError if the file names one that does not exist."""
    name = saved.text("default_prompt_name", "")
    if name and name not in prompts:
        known = ", ".join(prompts) or "none"
        message = f"{saved.where}: default_prompt_name: prompts has no {shortened(name)}; its names are {known}"
        raise LoadError(message, "corrupt")
    return prompts.get(name, "")


def _check_settings(sbert: Fields) -> None:
    """Raise LoadError if the settings make the module return anything else than the states of all tokens."""
    way = sbert.fields("modality_config").fields("text")
    method, output = way.text("method", "forward"), way.text("method_output_name", ITS_STATES[0])
    if method != "forward" or output not in ITS_STATES:
        message = f"{way.where}: {method} → {output} cannot be served; supported is forward → {ITS_STATES[0]}"
        raise LoadError(message, "unsupported")
    calls = sbert.fields("processing_kwargs")
    passed_on = [sbert.fields(key) for key in ("config_args", "config_kwargs")]
    for fields in (*passed_on, calls.fields("text"), calls.fields("common")):
        if own := sorted(set(fields.values) - set(WITHOUT_EFFECT)):
            message = (
                f"{fields.where}: {', '.join(own)} cannot be served; set it in config.json or tokenizer.json instead"
            )
            raise LoadError(message, "unsupported")


def _tokenizer_kwargs(sbert: Fields) -> dict[str, Any]:
    """Return the arguments for transformers' tokenizer; raise LoadError for one that cannot be passed on."""
    given = sbert.fields("tokenizer_args" if sbert.has("tokenizer_args") else "processor_kwargs")
    kwargs = {key: value for key, value in given.values.items() if key not in OF_THE_HUB}
    for key, value in kwargs.items():
        if key not in TOKENIZER_KWARGS:
            message = f"{given.where}: {shortened(key)} cannot be served; supported are {', '.join(TOKENIZER_KWARGS)}"
            raise LoadError(message, "unsupported")
        if not _is_plain(value):
            message = f"{given.where}: {key}: must be a string, a number, true, false, or a list of strings"
            raise LoadError(f"{message} (given {shortened(value)})", "unsupported")
    return kwargs


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_TOKENS and all(isinstance(each, str) and len(each) <= MAX_TOKEN for each in value)
    return value is None or isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= MAX_TOKEN)


def _max_sequence_length(sbert: Fields, transformer: Path, config: Fields) -> int:
    tokenizer = read_fields(transformer / "tokenizer_config.json", required=False)
    unused = config.integer("pad_token_id", 0) + 1 if config.text("model_type", "") in COUNT_FROM_PADDING else 0
    positions = config.integer("max_position_embeddings", UNLIMITED, least=1) - unused
    if positions < 1:
        raise LoadError(f"{config.where}: max_position_embeddings: leaves no position past pad_token_id", "corrupt")
    # Tokenizers without a limit save 10^30.
    limit = tokenizer.integer("model_max_length", UNLIMITED, least=1, most=None)
    for key in ("tokenizer_args", "processor_kwargs"):
        limit = sbert.fields(key).integer("model_max_length", limit, least=1, most=None)
    return min(sbert.integer("max_seq_length", limit, least=1), positions)
