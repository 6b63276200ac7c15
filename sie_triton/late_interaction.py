"""The late-interaction score: where a server makes it, and for clients that rank by themselves."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def maxsim(query: Floats, documents: Sequence[Floats]) -> Floats:
    """For each query vector its best product with a vector of the document, summed; not divided by the length.

    query [tokens, dim], documents [tokens, dim] each → float32 [documents]; 0 for a document without vectors.

    >>> maxsim(np.eye(2, dtype=np.float32), [np.array([[0.5, 0.0], [0.0, 1.0]], np.float32)]).tolist()
    [1.5]
    """
    scores = np.zeros(len(documents), np.float32)
    lengths = np.array([len(document) for document in documents], np.int64)
    filled = np.flatnonzero(lengths)
    if len(filled):
        starts = np.cumsum(lengths[filled]) - lengths[filled]
        products = query @ np.concatenate([documents[i] for i in filled]).T
        scores[filled] = np.maximum.reduceat(products, starts, axis=1).sum(axis=0)
    return scores
