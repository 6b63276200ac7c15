"""What families that read labels and words in one row have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features
from sie_triton.errors import ModelError
from sie_triton.families.token_batch import tokens
from sie_triton.inputs.words import Row, packed

if TYPE_CHECKING:
    import torch

# In a measured item, so many tokens are labels, and every so many of the others begin a word.
SAMPLE_LABELS = 4
TOKENS_A_WORD = 1.25


def pieces_of(batch: Batch, name: str) -> list[npt.NDArray[Any]]:
    """The rows of a ragged feature, piece by piece."""
    values, lengths = batch.features[name]
    assert lengths is not None
    return np.split(values, np.cumsum(lengths)[:-1])


def states_at(hidden: "torch.Tensor", batch: Batch, name: str, offset: int = 0) -> "list[torch.Tensor]":
    """hidden [tokens, d] → the states of the tokens `offset` behind those that a feature names, [rows, d] a piece.

    ModelError if one is not finite: no score of it would be above a threshold, so that the answer would be empty.
    """
    places, counts = batch.features[name]
    assert counts is not None
    import torch

    places, lengths = places + offset, tokens(batch)[1]
    if (places >= np.repeat(lengths, counts)).any():
        raise ValueError(f"{name}: names tokens behind the end of their piece")
    index = np.repeat(np.cumsum(lengths) - lengths, counts) + places
    states = hidden[index]
    # Their sum is finite only if all are, and takes a seventieth of the time.
    if not states.sum(dtype=torch.float32).isfinite():
        raise ModelError(f"{name}: the model computed states that are not finite")
    return list(torch.split(states, counts.tolist()))


def sample_words(lengths: Sequence[int], behind: int = 0) -> Features:
    """Items of these lengths, for measuring, with so many tokens at least behind that of each label."""
    return packed([_row(length, behind) for length in lengths])


def _row(length: int, behind: int) -> Row:
    num_labels = min(SAMPLE_LABELS, length - behind)
    words = np.unique(np.arange(num_labels, length, TOKENS_A_WORD).astype(np.int32))
    spans = np.stack([np.arange(len(words)), np.arange(len(words)) + 1], 1).astype(np.int32)
    labels = np.arange(num_labels, dtype=np.int32)
    return Row(0, np.ones(length, np.int32), words, spans, labels, np.full(num_labels, np.nan, np.float32))
