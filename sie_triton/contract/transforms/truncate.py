"""Matryoshka truncation and normalisation of vectors."""

import numpy as np

from sie_triton.contract.arrays import Floats


def truncate(vectors: Floats, dimensions: int) -> Floats:
    """Keep the first `dimensions` of each row of [n, d]."""
    return vectors[:, :dimensions]


def normalize(vectors: Floats) -> Floats:
    """Scale the rows of [n, d] to unit length; a zero row stays zero.

    >>> normalize(np.array([[3.0, 4.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    norms = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    unit: Floats = vectors / np.maximum(norms, np.float32(1e-12))
    return unit
