"""Similarity of a query to texts, from the outputs of their forward passes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats
from sie_triton.contract.transforms.late_interaction import maxsim
from sie_triton.contract.transforms.truncate import normalize

# Tensors of the contract, by name.
DENSE, MULTIVECTOR, SPARSE_INDICES, SPARSE_VALUES = "dense", "multivector", "sparse_indices", "sparse_values"

Row = Mapping[str, npt.NDArray[Any]]  # the tensors of one item, by name

# Weights of the modes of BGE-M3 (Chen et al., 2024).
HYBRID_WEIGHTS = {"dense": 0.4, "sparse": 0.2, "colbert": 0.4}


def similarity(mode: str, query: Row, texts: Sequence[Row]) -> Floats:
    """Score texts against a query, float32 [texts]; larger is more similar.

    dense: cosine. sparse: see `shared_weight`. maxsim: see `maxsim`. colbert: MaxSim divided by the number of query
    vectors. hybrid: weighted sum of dense, sparse and colbert.
    """
    if mode == "hybrid":
        scores = np.zeros(len(texts), np.float32)
        for part, weight in HYBRID_WEIGHTS.items():
            scores += np.float32(weight) * similarity(part, query, texts)
        return scores
    if mode == "dense":
        cosines: Floats = normalize(np.stack([text[DENSE] for text in texts])) @ normalize(query[DENSE][None])[0]
        return cosines
    if mode == "sparse":
        return shared_weight(query, texts)
    score = maxsim(query[MULTIVECTOR], [text[MULTIVECTOR] for text in texts])
    return score / np.float32(max(1, len(query[MULTIVECTOR]))) if mode == "colbert" else score


def shared_weight(query: Row, texts: Sequence[Row]) -> Floats:
    """Return for each text the sum of the products of weights, over the tokens that it shares with the query."""
    known, weights = query[SPARSE_INDICES], query[SPARSE_VALUES]
    if not len(known):
        return np.zeros(len(texts), np.float32)
    indices = np.concatenate([text[SPARSE_INDICES] for text in texts])
    values = np.concatenate([text[SPARSE_VALUES] for text in texts])
    places = np.minimum(np.searchsorted(known, indices), len(known) - 1)
    products = np.where(known[places] == indices, weights[places] * values, np.float32(0))
    of_text = np.repeat(np.arange(len(texts)), [len(text[SPARSE_INDICES]) for text in texts])
    return np.bincount(of_text, products, len(texts)).astype(np.float32)
