"""Settings common to all directories that sentence-transformers (any version) or transformers saved."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.architecture import CLASSIFIER, head, is_bare
from sie_triton.checkpoints.contents import read_config
from sie_triton.checkpoints.files import Fields, has_file, inside, read_fields, read_json, shortened
from sie_triton.checkpoints.library_keys import KEYS, LENIENT, OF_ALL, SAVED, check_keys, class_of
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.transformer_settings import (
    FILL_MASK,
    STATES,
    Lengths,
    checked,
    lengths_of,
    reads_messages,
    settings_of,
    tokenizer_arguments,
)
from sie_triton.errors import LoadError

# MLMTransformer is the name before sentence-transformers 6 of a transformer with a masked-language-model head.
TRANSFORMERS = ("Transformer", "MLMTransformer")


# Names of the same setting in different architectures.
LAYER_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
WIDTH_KEYS = ("hidden_size", "dim", "d_model", "n_embd")

# Architectures that project their last states to the width in this key.
PROJECTED = {"embedding_gemma2_text": "embedding_dim", "opt": "word_embed_proj_dim"}

MODULES, SAVED_SETTINGS = "modules.json", "config_sentence_transformers.json"

# Class names of PyLate's models and of sentence-transformers' rerankers.
PYLATE, CROSS_ENCODER = "ColBERT", "CrossEncoder"


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Settings of the transformer and its prompts."""

    transformer: Path
    config: Fields
    include_prompt: bool
    lengths: Lengths
    do_lower_case: bool
    prompts: dict[str, str]
    default_prompt: str  # of texts that are marked neither as queries nor as documents
    task: str  # the head that the library runs
    tokenizer_kwargs: dict[str, Any]  # over tokenizer_config.json: strings, numbers, booleans and lists of strings

    @classmethod
    def read(cls, directory: Path) -> "TextFiles":
        """Read the files; raise LoadError naming the one that cannot be used.

        Files of sentence-transformers count only beside modules.json, and those of a classifier only if CrossEncoder
        saved them, as in the library.
        """
        kinds = modules_of(directory)
        transformer = only(kinds, TRANSFORMERS, directory)
        config = read_config(transformer)
        for name in (*LAYER_KEYS, *WIDTH_KEYS, "num_attention_heads", "n_heads", "n_head"):
            config.integer(name, 1, least=1, most=LIMITS.max_layers if name in LAYER_KEYS else LIMITS.max_width)
        is_saved = _settings_count(directory, kinds, config)
        settings = checked(settings_of(transformer)) if is_saved else Fields(str(transformer), {})
        saved = saved_settings(directory) if is_saved else Fields(str(directory), {})
        prompts = prompts_of(saved)
        return cls(
            transformer=transformer,
            config=config,
            include_prompt=_include_prompt(kinds),
            lengths=lengths_of(settings, transformer, config),
            do_lower_case=settings.flag("do_lower_case", False),
            prompts=prompts,
            default_prompt=default_prompt(saved, prompts),
            task=settings.text("transformer_task", _usual_task(kinds)),
            tokenizer_kwargs=tokenizer_arguments(settings),
        )

    @property
    def max_sequence_length(self) -> int:
        """Maximum tokens of a text without a role."""
        return self.lengths.text


def tokenizer_kwargs(directory: Path, module: Path) -> dict[str, Any]:
    """Return the arguments for transformers' tokenizer in a module of the model in `directory`; LoadError as above."""
    config = read_fields(module / "config.json", required=False)
    counts = _settings_count(directory, modules_of(directory), config)
    return tokenizer_arguments(settings_of(module)) if counts else {}


def _settings_count(directory: Path, kinds: list[tuple[str, Path]], config: Fields) -> bool:
    """True if the library reads its own settings in `directory`: those of a classifier if CrossEncoder saved them."""
    if len(kinds) == 1 and head(config) == CLASSIFIER:
        return saved_as(directory) in (CROSS_ENCODER, PYLATE)
    return not is_bare(directory)


def check_task(text: TextFiles, task: str) -> None:
    """Raise LoadError if the library reads texts otherwise than as they are, or runs another head of the model."""
    settings = settings_of(text.transformer)
    if reads_messages(settings):
        message = "modality_config: message cannot be served"
        raise settings.unserved(f"{message}: it puts texts into the tokenizer's chat template")
    if text.task != task:
        raise settings.unserved(f"transformer_task: {shortened(text.task)} cannot be served; this family needs {task}")


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
        config = module_keys("Dense", path)
        if {config.text("module_input_name", on), config.text("module_output_name", on)} != {on}:
            raise LoadError(f"{path}: only Dense layers on {on} are supported", "unsupported")
        return cls(
            directory=path,
            in_features=config.integer("in_features", least=1, most=LIMITS.max_width),
            out_features=config.integer("out_features", least=1, most=LIMITS.max_width),
            bias=config.flag("bias", True),
            activation=config.text("activation_function", "torch.nn.modules.activation.Tanh"),
        )


def check_widths(layers: Sequence[DenseLayer], width: int) -> None:
    """Raise LoadError unless the first layer takes `width` features, and each other layer the output before it."""
    for layer in layers:
        if layer.in_features != width:
            message = f"{layer.directory}: in_features is {layer.in_features}, but the modules before it give {width}"
            raise LoadError(message, "corrupt")
        width = layer.out_features


def modules_of(directory: Path, route: str | None = "document") -> list[tuple[str, Path]]:
    """Return class name and directory of each module, in order; for a Router, the modules of texts of that route.

    `route` None: texts without a role. Raise LoadError if modules.json names a class that is not the library's.
    """
    path = directory / MODULES
    entries = read_json(path, default=[])
    if not has_file(path):
        return [("Transformer", directory)]
    if not isinstance(entries, list) or not 1 <= len(entries) <= LIMITS.max_modules:
        raise LoadError(f"{path}: must be a list of 1 to {LIMITS.max_modules} modules", "corrupt")
    kinds = [_module(f"{path}: module {i}", entry, directory) for i, entry in enumerate(entries)]
    return kinds if [kind for kind, _ in kinds] != ["Router"] else _routed(kinds[0][1], route)


def _routed(home: Path, task: str | None) -> list[tuple[str, Path]]:
    """Return the modules of texts of a task, in a Router."""
    # Asym, the Router of old, has config.json.
    name = "router_config.json" if has_file(home / "router_config.json") else "config.json"
    router = check_keys(read_fields(home / name), KEYS["Router"])
    types, routes = router.text_map("types"), router.fields("structure")
    route = _route(check_keys(router.fields("parameters"), KEYS["Router"]), tuple(routes.values), task)
    named = routes.texts(route)
    where = f"{routes.where}: {shortened(route)}"
    if set(named) - set(types) or len(named) > LIMITS.max_modules:
        raise LoadError(
            f"{where}: names modules that are missing in types, or more than {LIMITS.max_modules}", "corrupt"
        )
    return [(_class_name(types[each], where), inside(home, each, where)) for each in named]


def _route(parameters: Fields, routes: tuple[str, ...], task: str | None) -> str:
    """Return the route that the library takes for texts of a task; empty if there is none."""
    mappings = {_mapped(key): route for key, route in parameters.text_map("route_mappings").items()}
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in mappings:
            return mappings[key]
    named = next((each for each in (task, "text") if each in routes), None)
    if named is not None or task is not None:
        return named or ""
    default = parameters.text("default_route", "")
    return default or (routes[0] if routes and parameters.flag("allow_empty_key", True) else "")


def _mapped(key: str) -> Any:
    """Return the task and the modality of a key of route_mappings, which is a tuple in Python's notation."""
    try:
        found = ast.literal_eval(key) if len(key) <= LIMITS.max_route_characters else None
        return found if isinstance(found, tuple) and hash(found) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def check_one_way(kinds: list[tuple[str, Path]], directory: Path) -> None:
    """Raise LoadError if a Router sends other texts through other modules than `kinds`, those of documents."""
    others = [modules_of(directory, "query"), modules_of(directory, None) or kinds]
    if others != [kinds, kinds]:
        message = f"{directory}: queries and documents go through different modules"
        raise LoadError(f"{message}; this family needs the same modules for both", "unsupported")


def saved_as(directory: Path) -> str:
    """Return the class that saved the directory, ColBERT for PyLate's; empty without modules.json."""
    if is_bare(directory):
        return ""
    saved = read_fields(directory / SAVED_SETTINGS, required=False)
    if "model_type" in saved.values:
        return saved.text("model_type", "null")
    # What versions of PyLate before sentence-transformers 5 wrote instead.
    is_pylate = any(key in saved.values for key in ("query_prefix", "document_prefix"))
    return PYLATE if is_pylate else "SentenceTransformer"


def saved_settings(directory: Path) -> Fields:
    """Return the keys of config_sentence_transformers.json that the class that saved it reads; none without modules."""
    kind, path = saved_as(directory), directory / SAVED_SETTINGS
    keys = SAVED.get("MultiVectorEncoder" if kind == PYLATE else kind, OF_ALL)
    values = read_fields(path, required=False).values if kind else {}
    return Fields(str(path), {key: value for key, value in values.items() if key in keys})


def check_saved_as(directory: Path, allowed: tuple[str, ...]) -> None:
    """Raise LoadError if another class saved the directory: the library would convert the model."""
    if (found := saved_as(directory)) not in ("", *allowed):
        where = saved_settings(directory).where
        message = f"{where}: model_type: {shortened(found)} with these modules cannot be served"
        raise LoadError(f"{message}; supported is {' or '.join(allowed)}", "unsupported")


def module_keys(kind: str, path: Path, *, required: bool = True) -> Fields:
    """Read the settings of a module; raise LoadError for a key that would change a result."""
    return check_keys(read_fields(path / "config.json", required=required), KEYS[kind], is_lenient=kind in LENIENT)


def normalizes(path: Path, on: str = "sentence_embedding") -> bool:
    """Return True if the Normalize module in `path` scales the output `on`; False if it leaves it alone."""
    config = module_keys("Normalize", path, required=False)
    source = config.text("module_input_name", "sentence_embedding")
    target = config.text("module_output_name", source)
    if target == on != source:
        raise config.unserved(f"module_input_name: must be {on} (given {shortened(source)})")
    return target == on


def _module(where: str, entry: Any, directory: Path) -> tuple[str, Path]:
    fields = Fields.of(where, entry)
    return _class_name(fields.text("type"), where), inside(directory, fields.text("path"), f"{where}: path")


def _class_name(dotted: str, where: str) -> str:
    name = class_of(dotted)
    if not name:
        message = f"{where}: {shortened(dotted)} is no module of sentence-transformers"
        raise LoadError(f"{message}, and code from a model's files is never run", "unsupported")
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
    projected = PROJECTED.get(config.text("model_type", ""), "")
    name = next(filter(config.has, (projected, *WIDTH_KEYS)), None)
    if name is None:
        raise config.corrupt("hidden_size is missing")
    return config.integer(name, least=1, most=LIMITS.max_width)


def prompts_of(saved: Fields) -> dict[str, str]:
    """Return the prompts by name; raise LoadError if one is very long: it is put before each text."""
    prompts = saved.text_map("prompts")
    for name, prompt in prompts.items():
        if len(prompt) > LIMITS.max_prompt_characters:
            given = f"{shortened(name)} has {len(prompt)} characters"
            raise saved.unserved(f"prompts: {given}; at most {LIMITS.max_prompt_characters} are allowed")
    return prompts


def default_prompt(saved: Fields, prompts: dict[str, str]) -> str:
    """Return the prompt of texts without a role; raise LoadError if the file names one that does not exist."""
    name = saved.text("default_prompt_name", "")
    if name and name not in (*prompts, "query", "document"):
        known = ", ".join(prompts) or "none"
        raise saved.corrupt(f"default_prompt_name: prompts has no {shortened(name)}; its names are {known}")
    return prompts.get(name, "")


def _include_prompt(kinds: list[tuple[str, Path]]) -> bool:
    path = next((path for kind, path in kinds if kind == "Pooling"), None)
    return path is None or module_keys("Pooling", path).flag("include_prompt", True)


def _usual_task(kinds: list[tuple[str, Path]]) -> str:
    return FILL_MASK if TRANSFORMERS[1] in [kind for kind, _ in kinds] else STATES
