"""Helpers of families that read labels and words in one row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features, Label
from sie_triton.errors import ModelError
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.inputs.words import WordsPrompt, WordsRow, WordTokenizer, packed

if TYPE_CHECKING:
    import torch

# In an item for measuring: the number of label tokens, and how many of the other tokens there are to a word.
SAMPLE_LABELS = 4
TOKENS_A_WORD = 1.25


def pieces_of(batch: Batch, name: str) -> list[npt.NDArray[Any]]:
    """Split a ragged feature into the rows of each piece."""
    return batch.features[name].split()


def states_at(hidden: "torch.Tensor", batch: Batch, name: str, offset: int = 0) -> "list[torch.Tensor]":
    """Return the states of tokens, `offset` after those in a feature: hidden [tokens, d] → [rows, d] for each piece.

    ModelError if a state is not finite: its scores would pass no threshold, and the result would be empty.
    """
    places, counts = batch.features[name]
    assert counts is not None
    import torch

    places, lengths = places + offset, tokens(batch)[1]
    if (places >= np.repeat(lengths, counts)).any():
        raise ValueError(f"{name}: names tokens beyond the end of their piece")
    index = np.repeat(np.cumsum(lengths) - lengths, counts) + places
    states = hidden[index]
    # Their sum is finite only if all are, and takes a seventieth of the time.
    if not states.sum(dtype=torch.float32).isfinite():
        raise ModelError(f"{name}: the model computed states that are not finite")
    return list(torch.split(states, counts.tolist()))


def marked(labels: Sequence[Label], words: WordTokenizer, marker: str, separator: str, offset: int = 0) -> WordsPrompt:
    """Return the prompt: marker label marker label … separator. A label's token is `offset` after its marker."""
    written = [word for label in labels for word in (marker, label.read)]
    ((ids, kept, starts),) = words.tokens([[*written, separator]])
    is_marker = (kept % 2 == 0) & (kept < len(written))
    return WordsPrompt(ids, (starts[:-1][is_marker] + offset).astype(np.int32), thresholds_of(labels))


def sample_words(lengths: Sequence[int], behind: int = 0) -> Features:
    """Return items of these lengths, for measuring, with at least `behind` tokens after that of each label."""
    return packed([_row(length, behind) for length in lengths])


def _row(length: int, behind: int) -> WordsRow:
    num_labels = min(SAMPLE_LABELS, length - behind)
    words = np.unique(np.arange(num_labels, length, TOKENS_A_WORD).astype(np.int32))
    spans = np.stack([np.arange(len(words)), np.arange(len(words)) + 1], 1).astype(np.int32)
    labels = np.arange(num_labels, dtype=np.int32)
    return WordsRow(0, np.ones(length, np.int32), words, spans, labels, np.full(num_labels, np.nan, np.float32))
