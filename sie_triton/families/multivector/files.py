"""Reader of the files of a late-interaction model saved by sentence-transformers (MultiVectorEncoder) or PyLate.

Standard library only: render and preprocess read these without torch.
"""

import string
from dataclasses import dataclass, replace
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.modules import DenseLayer, TextFiles, check_one_way, hidden_size, modules_of
from sie_triton.errors import LoadError

# PyLate's default.
QUERY_LENGTH = 32

# Keys that PyLate writes; its versions before sentence-transformers 5 did not write model_type.
PYLATE_KEYS = ("query_prefix", "document_prefix")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Query expansion: queries are filled up to `length` tokens with `token`.

    An empty `token` is the tokenizer's mask token, or else its end of sequence. With `is_ceiling`, longer queries are
    truncated to `length`. With `attend`, the encoder attends to the added tokens.
    """

    length: int
    is_ceiling: bool
    attend: bool
    token: str


@dataclass(frozen=True, slots=True)
class MultiVectorFiles:
    """Files of a late-interaction model. stanford_colbert.py reads those of Stanford's code.

    `query_length` or `document_length` 0 is that of the transformer. `markers` are prompts, or their first words, that
    are single tokens if the tokenizer knows them. Tokens of the words in `skipped` have no vectors in the roles
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
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        text, kinds = TextFiles.read(directory), modules_of(directory)
        names = [kind for kind, _ in kinds]
        check_one_way(kinds, directory)
        _check(names, directory)
        saved = read_fields(directory / "config_sentence_transformers.json", required=False)
        own = read_fields(text.transformer / "sentence_bert_config.json", required=False)
        newer = {key: value for key, value in own.values.items() if value is not None}
        settings = Fields(own.where if newer else saved.where, {**saved.values, **newer})
        is_pylate = is_saved_by_pylate(directory)
        mask = next((read_fields(path / "config.json") for kind, path in kinds if kind == "MultiVectorMask"), saved)
        dense = tuple(DenseLayer.read(path, "token_embeddings") for kind, path in kinds if kind == "Dense")
        markers = {role: saved.text(f"{role}_prefix", "") for role in ("query", "document")}
        prompts = {role: marker + text.prompts.get(role, "").removeprefix(marker) for role, marker in markers.items()}
        return cls(
            # A text without a role is a document.
            text=replace(text, prompts=prompts, default_prompt=text.default_prompt or prompts["document"]),
            dim=dense[-1].out_features if dense else hidden_size(text.config),
            dense=dense,
            normalize=is_pylate or "Normalize" in names,
            query_length=settings.integer("query_length", 0),
            document_length=settings.integer("document_length", 0),
            expansion=_expansion(settings, is_pylate),
            markers=tuple(filter(None, markers.values())),
            skipped=mask.texts("skiplist_words", tuple(string.punctuation) if is_pylate and mask is saved else ()),
            skipped_in=mask.texts("skiplist_tasks", ("document",)),
        )

    @property
    def chain(self) -> str:
        """The modules that make the vectors, in words."""
        expansion = self.expansion
        queries = [f"queries filled up to {expansion.length} tokens"] if expansion is not None else []
        layers = [f"Dense ({layer.out_features})" for layer in self.dense]
        return ", ".join(["Transformer", *layers, *(["Normalize"] if self.normalize else []), *queries])


def is_saved_by_pylate(directory: Path) -> bool:
    saved = read_fields(directory / "config_sentence_transformers.json", required=False)
    kind = saved.text("model_type", "")
    return kind == "ColBERT" or (not kind and any(key in saved.values for key in PYLATE_KEYS))


def _check(names: list[str], directory: Path) -> None:
    if names[:1] != ["Transformer"] or set(names[1:]) - {"Dense", "MultiVectorMask", "Normalize", "Dropout"}:
        raise LoadError(
            f"modules.json in {directory}: {' → '.join(names)} cannot be served; "
            "supported is Transformer → Dense (any number) → MultiVectorMask → Normalize",
            "unsupported",
        )


def _expansion(settings: Fields, is_pylate: bool) -> Expansion | None:
    """Read the query expansion in its current or in PyLate's form; PyLate expands by default."""
    if settings.has("query_expansion"):
        given = settings.fields("query_expansion")
        return Expansion(
            length=given.integer("length", least=1),
            is_ceiling=given.one_of("strategy", ("fixed", "min")) == "fixed",
            attend=given.flag("attend", False),
            token=given.text("token", ""),
        )
    if "query_expansion" in settings.values or not is_pylate or not settings.flag("do_query_expansion", True):
        return None
    attend = "attend_to_expansion_tokens"
    length = settings.integer("query_length", 0) or QUERY_LENGTH
    attends = settings.flag(attend if attend in settings.values else "attend_to_mask_tokens", False)
    return Expansion(length, is_ceiling=True, attend=attends, token="")
