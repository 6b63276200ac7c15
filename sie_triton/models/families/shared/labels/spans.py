"""Results of a forward pass that finds spans: one piece after another."""

from collections.abc import Iterable

import numpy as np

from sie_triton.contract import Rows
from sie_triton.contract.arrays import Array, lengths_of
from sie_triton.contract.tensors import Tensor

SPAN_LENGTHS = Tensor("span_lengths", "INT32", (-1,), "[pieces] spans per piece")
SPANS = Tensor("spans", "INT32", (-1, 3), "[spans, 3] start and end in the text, label", SPAN_LENGTHS.name)
SPAN_SCORES = Tensor("span_scores", "FP32", (-1,), "[spans]", SPAN_LENGTHS.name)


def scored(found: Iterable[tuple[Array, Array]], rows: Tensor, scores: Tensor) -> Rows:
    """Return what was found in each piece: its rows and their scores."""
    of_pieces, of_scores = zip(*found, strict=True)
    return {
        rows.name: np.concatenate(of_pieces),
        scores.name: np.concatenate(of_scores),
        rows.lengths: lengths_of(of_pieces),
    }
