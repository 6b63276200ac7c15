"""Results of a forward pass that finds spans: one piece after another."""

from collections.abc import Iterable

import numpy as np

from sie_triton.contract import Rows
from sie_triton.contract.arrays import Array, item_lengths
from sie_triton.contract.tensors import Tensor

SPANS = Tensor("spans", "INT32", (-1, 3), "[spans, 3] start and end in the text, label", "span_lengths")
SPAN_SCORES = Tensor("span_scores", "FP32", (-1,), "[spans]", SPANS.lengths)


def scored(found: Iterable[tuple[Array, Array]], rows: Tensor, scores: Tensor) -> Rows:
    """Return what was found in each piece: its rows and their scores."""
    of_pieces, of_scores = zip(*found, strict=True)
    return {
        rows.name: np.concatenate(of_pieces),
        scores.name: np.concatenate(of_scores),
        rows.lengths: item_lengths(of_pieces),
    }
