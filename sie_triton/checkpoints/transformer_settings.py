"""Reader of sentence_bert_config.json, the settings of a Transformer module of sentence-transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, read_fields, shortened
from sie_triton.checkpoints.library_keys import (
    CALLS,
    EXPANSION,
    OBEYED,
    OF_CALLS,
    OF_CONFIGS,
    OF_MODELS,
    OF_TOKENIZERS,
    TRANSFORMER,
    check_keys,
)
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.positions import UNLIMITED, is_rotary, num_positions
from sie_triton.errors import LoadError

# Tasks of a Transformer module: which head of the model it runs.
STATES, FILL_MASK, CLASSIFICATION = "feature-extraction", "fill-mask", "sequence-classification"
GENERATION = "text-generation"

# File names of the settings: sentence-transformers before 2 named them by architecture.
NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
ITS_STATES = ("last_hidden_state", "logits")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Filling of queries up to `length` tokens."""

    length: int
    is_ceiling: bool  # longer queries are truncated to `length`
    attend: bool  # the encoder attends to the added tokens
    token: str  # that is added; empty: the tokenizer's mask token, or else its end of sequence


@dataclass(frozen=True, slots=True)
class Lengths:
    """Maximum tokens of a text without a role, of a query, and of a document."""

    text: int
    query: int
    document: int
    expansion: Expansion | None = None

    @property
    def longest(self) -> int:
        return max(self.text, self.query, self.document, self.expansion.length if self.expansion else 0)


def settings_of(transformer: Path) -> Fields:
    """Return the settings in the first of the settings files that holds any; empty if none does."""
    files = (read_fields(transformer / f"sentence_{name}_config.json", required=False) for name in NAMES)
    return next((found for found in files if found.values), Fields(str(transformer), {}))


def checked(settings: Fields) -> Fields:
    """Return `settings`; raise LoadError if they change what the module reads or returns."""
    check_keys(settings, TRANSFORMER)
    way = settings.fields("modality_config").fields("text")
    method, output = way.text("method", "forward"), way.text("method_output_name", ITS_STATES[0])
    if method != "forward" or output not in ITS_STATES:
        raise way.unserved(f"{method} → {output} cannot be served; supported is forward → {ITS_STATES[0]}")
    calls = check_keys(settings.fields("processing_kwargs"), CALLS, is_lenient=True)
    for kind in ("text", "common"):
        check_keys(calls.fields(kind), OF_CALLS)
    check_keys(_passed_on(settings, "model"), OF_MODELS)
    check_keys(_passed_on(settings, "config"), OF_CONFIGS)
    return settings


def reads_messages(settings: Fields) -> bool:
    """Return True if the library puts texts into the tokenizer's chat template."""
    return settings.fields("modality_config").has("message")


def tokenizer_arguments(settings: Fields) -> dict[str, Any]:
    """Return the arguments for transformers' tokenizer; raise LoadError for one that cannot be passed on."""
    given = check_keys(_passed_on(settings, "processor"), OF_TOKENIZERS)
    kwargs = {key: value for key, value in given.values.items() if OF_TOKENIZERS.get(key) == OBEYED}
    for key, value in kwargs.items():
        if not _is_plain(value):
            message = f"{key}: must be a string, a whole number, true, false, or a list of strings"
            raise given.unserved(f"{message} (given {shortened(value)})")
    return kwargs


def lengths_of(settings: Fields, transformer: Path, config: Fields) -> Lengths:
    """Return the maximum lengths, as the library chooses them.

    A length in `settings` goes before that of the tokenizer; it may exceed the positions in config.json if these are
    computed. Learned positions are a limit in any case.
    """
    given, positions = tokenizer_arguments(settings), num_positions(config)
    known = UNLIMITED if is_rotary(config) else positions
    if "model_max_length" in given:
        named = Fields(settings.where, given).integer("model_max_length", least=1, most=None)
        longest = min(named, known)
    elif settings.has("max_seq_length"):
        longest = min(settings.integer("max_seq_length", least=1), known)
    else:
        # Tokenizers without a limit save 10^30.
        saved = read_fields(transformer / "tokenizer_config.json", required=False)
        longest = min(saved.integer("model_max_length", UNLIMITED, least=1, most=None), positions)
    return role_lengths(settings, min(longest, UNLIMITED), known)


def role_lengths(settings: Fields, longest: int, known: int) -> Lengths:
    """Return the lengths of roles: `longest` unless `settings` give another one, of at most `known` tokens."""
    query, document = (
        min(settings.integer(f"{role}_length", longest, least=1), known) for role in ("query", "document")
    )
    expansion = expansion_of(settings.fields("query_expansion")) if settings.has("query_expansion") else None
    if expansion is None:
        return Lengths(longest, query, document)
    if settings.integer("query_length", expansion.length) < expansion.length or expansion.length > known:
        where = f"{settings.where}: query_expansion: length {expansion.length}"
        message = f"{where}: must be at most query_length and the positions in config.json, {min(query, known)}"
        raise LoadError(message, "corrupt")
    return Lengths(longest, expansion.length if expansion.is_ceiling else query, document, expansion)


def expansion_of(given: Fields) -> Expansion:
    """Read a query expansion in its current form."""
    check_keys(given, EXPANSION)
    return Expansion(
        length=given.integer("length", least=1),
        is_ceiling=given.one_of("strategy", ("fixed", "min")) == "fixed",
        attend=given.flag("attend", False),
        token=given.text("token", ""),
    )


def _passed_on(settings: Fields, what: str) -> Fields:
    """Return the arguments for transformers, under the former name of their key if it is there."""
    former = {"model": "model_args", "config": "config_args", "processor": "tokenizer_args"}[what]
    return settings.fields(former if former in settings.values else f"{what}_kwargs")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= LIMITS.max_special_tokens and all(
            isinstance(each, str) and len(each) <= LIMITS.max_special_token_characters for each in value
        )
    return (
        value is None
        or isinstance(value, bool | int)
        or (isinstance(value, str) and len(value) <= LIMITS.max_special_token_characters)
    )
