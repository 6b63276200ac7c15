"""Split and join ragged features of items. Pure; arrays are shared where possible."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from sie_triton.contract import Features, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import PIECE, TRUNCATED, Tensor


def num_pieces(features: Features, num_elements: int) -> Ints:
    """Return the number of items that each element is read in, int32 [elements]."""
    if PIECE.name not in features:
        return np.ones(num_elements, np.int32)
    starts = np.flatnonzero(features[PIECE.name].values == 0)
    return np.diff(starts, append=len(features[PIECE.name].values)).astype(np.int32)


def truncated(features: Features, num_items: int) -> list[int]:
    """Indices of the truncated items among the first `num_items`; empty if the processor does not report them."""
    if TRUNCATED.name not in features:
        return []
    return [i for i, is_cut in enumerate(features[TRUNCATED.name].values[:num_items].tolist()) if is_cut]


def split(features: Features, counts: Sequence[int]) -> list[Features]:
    """Split features into consecutive parts of `counts` items each."""
    if len(counts) == 1:
        return [features]
    items = list(accumulate(counts, initial=0))
    parts: list[dict[str, Ragged]] = [{} for _ in counts]
    for name, (values, lengths) in features.items():
        rows = items
        if lengths is not None:
            rows = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[items].tolist()
        for i, part in enumerate(parts):
            of_part = None if lengths is None else lengths[items[i] : items[i + 1]]
            part[name] = Ragged(values[rows[i] : rows[i + 1]], of_part)
    return list(parts)


def join(parts: Sequence[Features]) -> Features:
    """Concatenate parts, which all have the same features."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def copies(item: Features, cost: float, lengths: Sequence[int]) -> Features:
    """Return as many copies of an item of this cost as cost about as much as items of these lengths; for measuring."""
    return join([item] * max(1, round(sum(lengths) / cost)))


def _joined(pieces: Sequence[Ragged]) -> Ragged:
    lengths = [piece.lengths for piece in pieces if piece.lengths is not None]
    return Ragged(np.concatenate([piece.values for piece in pieces]), np.concatenate(lengths) if lengths else None)


def to_tensors(features: Features, declared: Sequence[Tensor]) -> Rows:
    """Return the tensors to send: the values of each declared feature, followed by the lengths, each once."""
    sent = {tensor.name: features[tensor.name].values for tensor in declared}
    for tensor in declared:
        if tensor.lengths and tensor.lengths not in sent:
            lengths = features[tensor.name].lengths
            assert lengths is not None
            sent[tensor.lengths] = lengths
    return sent


def from_tensors(sent: Rows, declared: Sequence[Tensor]) -> Features:
    return {
        tensor.name: Ragged(sent[tensor.name], sent[tensor.lengths] if tensor.lengths else None) for tensor in declared
    }
