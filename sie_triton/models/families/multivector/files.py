"""Reader of the files of a late-interaction model saved by sentence-transformers (MultiVectorEncoder) or PyLate.

Standard library only: render and preprocess read these without torch.
"""

import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.library_keys import LENGTHS
from sie_triton.checkpoints.modules import (
    PYLATE,
    DenseLayer,
    TextFiles,
    check_one_way,
    check_saved_as,
    check_task,
    hidden_size,
    module_keys,
    modules_of,
    normalizes,
    saved_as,
    saved_settings,
)
from sie_triton.checkpoints.positions import UNLIMITED, is_rotary, num_positions
from sie_triton.checkpoints.transformer_settings import STATES, role_lengths, settings_of
from sie_triton.errors import LoadError

TOKENS, MASK = "token_embeddings", "MultiVectorMask"

# PyLate's default.
QUERY_LENGTH = 32

# Keys of config_sentence_transformers.json that show a model of PyLate, whose queries are expanded by default.
OF_PYLATE = (
    *LENGTHS,
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
)


@dataclass(frozen=True, slots=True)
class MultiVectorFiles:
    """Files of a late-interaction model. stanford_colbert.py reads those of Stanford's code."""

    text: TextFiles
    dim: int
    dense: tuple[DenseLayer, ...]
    normalize: bool
    markers: tuple[str, ...]  # prompts, or their first words, that are single tokens if the tokenizer knows them
    skipped: tuple[str, ...]  # words without vectors
    skipped_in: tuple[str, ...]  # roles in which they have none
    kept: tuple[int, ...] = ()  # the only tokens of documents that have vectors; empty: all

    @classmethod
    def read(cls, directory: Path) -> "MultiVectorFiles":
        """Read the files; raise LoadError naming the file or module that cannot be used."""
        text, kinds = TextFiles.read(directory), modules_of(directory)
        check_one_way(kinds, directory)
        kinds = [(kind, path) for kind, path in kinds if kind != "Dropout"]
        _check_order([kind for kind, _ in kinds], directory)
        check_saved_as(directory, ("MultiVectorEncoder", PYLATE))
        check_task(text, STATES)
        saved, is_pylate = saved_settings(directory), saved_as(directory) == PYLATE
        mask = next((module_keys(MASK, path) for kind, path in kinds if kind == MASK), saved)
        punctuation = tuple(string.punctuation) if is_pylate else ()
        dense = tuple(DenseLayer.read(path, TOKENS) for kind, path in kinds if kind == "Dense")
        markers = {role: saved.text(f"{role}_prefix", "") for role in ("query", "document")}
        prompts = {role: marker + text.prompts.get(role, "").removeprefix(marker) for role, marker in markers.items()}
        return cls(
            # A text without a role is a document.
            text=replace(
                _with_lengths(text, saved), prompts=prompts, default_prompt=text.default_prompt or prompts["document"]
            ),
            dim=dense[-1].out_features if dense else hidden_size(text.config),
            dense=dense,
            normalize=is_pylate or any(normalizes(path, TOKENS) for kind, path in kinds if kind == "Normalize"),
            markers=tuple(filter(None, markers.values())),
            skipped=mask.texts("skiplist_words", punctuation),
            skipped_in=mask.texts("skiplist_tasks", ("document",)),
            kept=mask.integers("keep_only_token_ids", most=1000),
        )

    @property
    def chain(self) -> str:
        """The modules that make the vectors, in words."""
        expansion = self.text.lengths.expansion
        queries = [f"queries filled up to {expansion.length} tokens"] if expansion is not None else []
        layers = [f"Dense ({layer.out_features})" for layer in self.dense]
        return ", ".join(["Transformer", *layers, *(["Normalize"] if self.normalize else []), *queries])


def vocab_size(text: TextFiles) -> int:
    """Return the number of token ids, by config.json."""
    return text.config.integer("vocab_size", least=1)


def is_saved_by_pylate(directory: Path) -> bool:
    return saved_as(directory) == PYLATE


def _check_order(names: list[str], directory: Path) -> None:
    others = names[1:]
    dense = [name for name in others if name == "Dense"]
    if names[:1] != ["Transformer"] or others not in (
        [*dense, *chain] for chain in ([], [MASK], ["Normalize"], [MASK, "Normalize"], ["Normalize", MASK])
    ):
        raise LoadError(
            f"modules.json in {directory}: {' → '.join(names)} cannot be served; "
            f"supported is Transformer → Dense (any number) → {MASK} → Normalize",
            "unsupported",
        )
    if MASK in names and is_saved_by_pylate(directory):
        raise LoadError(f"{directory}: {MASK} beside the settings of PyLate cannot be served", "unsupported")


def _with_lengths(text: TextFiles, saved: Fields) -> TextFiles:
    """Return `text` with the lengths of roles; those of the transformer go before PyLate's."""
    own = settings_of(text.transformer)
    ours = {key: own.values[key] for key in LENGTHS if key in own.values}
    settings = Fields(own.where if ours else saved.where, {**_lengths_of_pylate(saved), **ours})
    known = UNLIMITED if is_rotary(text.config) else num_positions(text.config)
    return replace(text, lengths=role_lengths(settings, text.max_sequence_length, known))


def _lengths_of_pylate(saved: Fields) -> dict[str, Any]:
    """Return the lengths of roles and the query expansion, in their current form."""
    found = {key: saved.values[key] for key in LENGTHS if saved.has(key)}
    is_pylate = any(key in saved.values for key in OF_PYLATE)
    if "query_expansion" in saved.values or not is_pylate or not saved.flag("do_query_expansion", True):
        return found
    attend = "attend_to_expansion_tokens"
    attends = saved.flag(attend if attend in saved.values else "attend_to_mask_tokens", False)
    length = saved.integer("query_length", 0) or QUERY_LENGTH
    found.pop("query_length", None)
    return {**found, "query_expansion": {"strategy": "fixed", "attend": attends, "length": length}}
