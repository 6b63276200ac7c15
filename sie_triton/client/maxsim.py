"""The late-interaction score of multivectors, for clients that rank by themselves."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


def maxsim(query: Vectors, documents: Sequence[Vectors]) -> Vectors:
    """For each query vector its best product with a vector of the document, summed; not divided by the length.

    query [tokens, dim], documents [tokens, dim] each → float32 [documents]; 0 for a document without vectors.

    >>> maxsim(np.eye(2, dtype=np.float32), [np.array([[0.5, 0.0], [0.0, 1.0]], np.float32)]).tolist()
    [1.5]
    """
    return np.array([(query @ each.T).max(axis=1).sum() if len(each) else 0 for each in documents], np.float32)
