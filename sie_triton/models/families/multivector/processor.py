"""Texts → packed token ids for late interaction: length and prompt by role, queries filled up. No torch."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

import tokenizers

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract.spec import ModelSpec, Profile
from sie_triton.models.families.multivector import MultiVectorOptions, files_of
from sie_triton.models.families.multivector.files import MultiVectorFiles, vocab_size
from sie_triton.models.inputs.text_processor import Filling, RoleTokenizer, expansion_id, shortest


class MultiVectorTokenizer(RoleTokenizer):
    """Tokenizer of a late-interaction model. Tokens that fill a query up unseen are numbered past the vocabulary."""

    @classmethod
    def of(cls, files: MultiVectorFiles, max_length: int, profiles: Sequence[Profile] = ()) -> Self:
        """Read the tokenizers, given the model's files."""
        return cls.of_roles(files.text, max_length, profiles, partial(with_markers, markers=files.markers))

    @classmethod
    def filling(cls, tokenizer: tokenizers.Tokenizer, files: TextFiles, max_length: int) -> Filling | None:
        """Return how queries are filled up; each added token has a vector."""
        expansion = files.lengths.expansion
        if expansion is None:
            return None
        number = expansion_id(tokenizer, files, expansion) + (0 if expansion.attend else vocab_size(files))
        return Filling(shortest(expansion, max_length), number)


def with_markers(tokenizer: tokenizers.Tokenizer, markers: Sequence[str]) -> tokenizers.Tokenizer:
    """Make markers of roles single tokens, if they were in training."""
    known = tokenizer.get_vocab()
    for marker in markers:
        name = next((name for name in (marker, *marker.split()[:1]) if name in known), None)
        if name is not None and tokenizer.encode(name, add_special_tokens=False).tokens != [name]:
            tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True)])
    return tokenizer


def load_processor(spec: ModelSpec, directory: Path) -> MultiVectorTokenizer:
    files = files_of(directory, MultiVectorOptions.of(spec))
    return MultiVectorTokenizer.of(files, spec.max_sequence_length, spec.profiles)
