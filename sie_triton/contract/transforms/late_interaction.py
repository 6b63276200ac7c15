"""Late-interaction score (MaxSim), for the server and for clients that rank by themselves."""

from collections.abc import Sequence

import numpy as np

from sie_triton.contract.arrays import Floats


def maxsim(query: Floats, documents: Sequence[Floats]) -> Floats:
    """Return, for each document, the sum (not the mean) over query vectors of the best product with one of its vectors.

    query [tokens, dim], documents [tokens, dim] each → float32 [documents]; 0 for a document without vectors.

    >>> maxsim(np.eye(2, dtype=np.float32), [np.array([[0.5, 0.0], [0.0, 1.0]], np.float32)]).tolist()
    [1.5]
    """
    return np.array([_best(query, document).sum() for document in documents], np.float32)


def _best(query: Floats, document: Floats) -> Floats:
    """Return the best product of each query vector, computed for a block of the document's vectors at a time."""
    best = np.full(len(query), -np.inf, np.float32)
    # So many products at a time that a long query with a long document stays in the CPU cache.
    block = max(1, (1 << 20) // max(1, len(query)))
    for start in range(0, len(document), block):
        np.maximum(best, (query @ document[start : start + block].T).max(axis=1), out=best)
    return best if len(document) else np.zeros_like(best)
