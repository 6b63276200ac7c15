"""Texts → packed token ids for late interaction: length and prompt by role, queries filled up. No torch."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from sie_triton.contract import Features
from sie_triton.errors import LoadError
from sie_triton.families.multivector import MultiVectorOptions, files_of
from sie_triton.families.multivector.files import Expansion, MultiVectorFiles
from sie_triton.inputs.cutting import encoded
from sie_triton.inputs.tokenizer import TextTokenizer, log_disagreements, packed_encodings, packed_ids, read_tokenizer
from sie_triton.spec import ModelSpec, Profile

log = logging.getLogger(__name__)


class MultiVectorTokenizer(TextTokenizer):
    has_roles = True

    def __init__(
        self,
        queries: tokenizers.Tokenizer,
        documents: tokenizers.Tokenizer,
        files: MultiVectorFiles,
        expansion: Expansion | None,
    ) -> None:
        super().__init__(documents, files.text)
        self._queries = queries
        self._expansion = expansion
        self._filler = expansion_id(queries, expansion) if expansion else 0

    @classmethod
    def of(cls, files: MultiVectorFiles, max_length: int, profiles: Sequence[Profile] = ()) -> "MultiVectorTokenizer":
        """Read the tokenizer, given the model's files."""
        log_disagreements(files.text, max_length, profiles)
        longest = min(max_length, files.text.max_sequence_length)
        query_length = files.query_length or longest
        if files.expansion is not None and files.expansion.is_ceiling:
            query_length = files.expansion.length
        queries, documents = (
            with_markers(read_tokenizer(files.text, min(longest, limit or longest)), files.markers)
            for limit in (query_length, files.document_length)
        )
        return cls(queries, documents, files, _within(files.expansion, longest))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        if not is_query:
            return super().encode(framed)
        encodings = encoded(self._queries, framed)
        ids = [encoding.ids for encoding in encodings]
        if self._expansion is not None:
            ids = [item + [self._filler] * (self._expansion.length - len(item)) for item in ids]
        return {**packed_encodings(encodings), **packed_ids(ids)}


def _within(expansion: Expansion | None, longest: int) -> Expansion | None:
    """Limit the filling of queries to what the model file lets the model read."""
    if expansion is None or expansion.length <= longest:
        return expansion
    log.warning(
        "queries are filled up to %d tokens, not to %d, because of max_sequence_length", longest, expansion.length
    )
    return replace(expansion, length=longest)


def expansion_id(tokenizer: tokenizers.Tokenizer, expansion: Expansion) -> int:
    """Return the token with which queries are filled up."""
    known = tokenizer.get_vocab()
    names = [expansion.token] if expansion.token else ["[MASK]", "<mask>", "</s>", "<|endoftext|>", "[SEP]"]
    for name in names:
        if name in known:
            return int(known[name])
    raise LoadError(
        f"the tokenizer has none of {', '.join(names)}, one of which is needed to fill up queries", "unsupported"
    )


def with_markers(tokenizer: tokenizers.Tokenizer, markers: Sequence[str]) -> tokenizers.Tokenizer:
    """Make markers of roles single tokens, if they were in training."""
    known = tokenizer.get_vocab()
    for marker in markers:
        name = next((name for name in (marker, *marker.split()[:1]) if name in known), None)
        if name is not None and tokenizer.encode(name, add_special_tokens=False).tokens != [name]:
            tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True)])
    return tokenizer


def load_processor(spec: ModelSpec, directory: Path) -> MultiVectorTokenizer:
    """Load the processor; raise LoadError saying what is wrong with its files."""
    files = files_of(directory, MultiVectorOptions.of(spec))
    return MultiVectorTokenizer.of(files, spec.max_sequence_length, spec.profiles)
