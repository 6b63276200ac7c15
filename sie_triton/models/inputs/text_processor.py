"""Texts → packed token ids, by role: queries may have another length than documents, and be filled up. No torch."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields, shortened
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.checkpoints.transformer_settings import Expansion
from sie_triton.contract import Features, Part
from sie_triton.contract.spec import ModelSpec, Profile
from sie_triton.errors import LoadError
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.tokenizer import (
    TextTokenizer,
    log_disagreements,
    packed_encodings,
    packed_ids,
    read_tokenizer,
    with_other_side,
)

log = logging.getLogger(__name__)

Change = Callable[[tokenizers.Tokenizer], tokenizers.Tokenizer]


@dataclass(frozen=True, slots=True)
class Filling:
    """Queries are filled up to `length` ids with `number`."""

    length: int
    number: int


class RoleTokenizer(TextTokenizer):
    """A tokenizer for queries and one for all other texts, which count as documents."""

    has_roles = True

    def __init__(
        self, queries: tokenizers.Tokenizer, documents: tokenizers.Tokenizer, files: TextFiles, filling: Filling | None
    ) -> None:
        super().__init__(documents, files)
        self._queries, self._filling = queries, filling

    @classmethod
    def load(cls, directory: Path, max_length: int, profiles: Sequence[Profile] = ()) -> Self:
        """Read the tokenizers of a model directory, truncating to `max_length` tokens."""
        return cls.of_roles(TextFiles.read(directory), max_length, profiles)

    @classmethod
    def of_roles(
        cls, files: TextFiles, max_length: int, profiles: Sequence[Profile] = (), change: Change | None = None
    ) -> Self:
        """Read the tokenizers, given the model's files; `change` completes each of them."""
        log_disagreements(files, max_length, profiles)
        longest = dict.fromkeys(min(max_length, each) for each in (files.lengths.query, files.lengths.document))
        made = [read_tokenizer(files, each) for each in longest]
        queries, documents = (made[0], made[-1]) if change is None else (change(made[0]), change(made[-1]))
        return cls(queries, documents, files, cls.filling(queries, files, max_length))

    @classmethod
    def filling(cls, tokenizer: tokenizers.Tokenizer, files: TextFiles, max_length: int) -> Filling | None:
        """Return how queries are filled up: not at all with tokens that the encoder does not attend to."""
        expansion = files.lengths.expansion
        if expansion is None or not expansion.attend:
            return None
        return Filling(shortest(expansion, max_length), expansion_id(tokenizer, files, expansion))

    def _switch_side(self) -> None:
        super()._switch_side()
        self._queries = with_other_side(self._queries)

    def tokenizer_of(self, part: Part) -> tokenizers.Tokenizer:
        documents = super().tokenizer_of(part)
        return self._queries if self.is_query(part) else documents

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        if not is_query:
            return super().encode(framed)
        encodings = encoded(self._queries, framed)
        ids = [encoding.ids for encoding in encodings]
        if self._filling is not None:
            ids = [item + [self._filling.number] * (self._filling.length - len(item)) for item in ids]
        return {**packed_encodings(encodings), **packed_ids(ids)}


def shortest(expansion: Expansion, max_length: int) -> int:
    """Return the minimum tokens of a query, as far as the model file lets the model read them."""
    if expansion.length > max_length:
        message = "queries are filled up to %d tokens, not to %d, because of max_sequence_length"
        log.warning(message, max_length, expansion.length)
    return min(expansion.length, max_length)


def expansion_id(tokenizer: tokenizers.Tokenizer, files: TextFiles, expansion: Expansion) -> int:
    """Return the token with which queries are filled up; LoadError if there is none, or they are filled on the left."""
    home = files.transformer
    saved = read_fields(home / "tokenizer_config.json", required=False)
    side = Fields(saved.where, {**saved.values, **files.tokenizer_kwargs}).text("padding_side", "right")
    if side != "right":
        raise saved.unserved("padding_side: queries can only be filled up on the right")
    usual = [special_token(home, name, "") for name in ("mask_token", "eos_token")]
    token = expansion.token or next(filter(None, usual), "")
    number = tokenizer.token_to_id(token)
    if number is None:
        message = f"the tokenizer has no token {shortened(token)}, with which queries are filled up"
        raise LoadError(message, "unsupported")
    return int(number)


def load_processor(spec: ModelSpec, directory: Path) -> TextTokenizer:
    """Load the processor of texts without a prompt of the family's own; raise LoadError if its files are wrong."""
    lengths = TextFiles.read(directory).lengths
    is_one = lengths.expansion is None and lengths.query == lengths.document == lengths.text
    kind = TextTokenizer if is_one else RoleTokenizer
    return kind.load(directory, spec.max_sequence_length, spec.profiles)
