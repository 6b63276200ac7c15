"""Fewer vectors per document: similar ones become their mean, as by sentence-transformers' HierarchicalTokenPooling.

Clusters are those of Ward's method on cosine distances, found by nearest-neighbour chains (Murtagh, 1983).
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features, Options, Parameter, Rows
from sie_triton.contract.arrays import Floats, item_lengths
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS
from sie_triton.contract.transforms import normalize
from sie_triton.errors import InputError
from sie_triton.models.inputs.request_parts import RequestParts, name_of

# Maximum tokens of a document whose vectors are pooled. Time and memory grow with their square: 0.2 s and 40 MB.
MAX_TOKENS = 2048

POOL_FACTOR = Parameter(
    "pool_factor",
    float,
    minimum=1,
    maximum=MAX_TOKENS,
    doc=f"vectors of a document that become one, the mean of similar ones; up to {MAX_TOKENS} tokens; default: 1",
)
NUM_PROTECTED_TOKENS = Parameter(
    "num_protected_tokens",
    int,
    minimum=0,
    maximum=MAX_TOKENS,
    doc="first vectors that pool_factor leaves; default: 1",
)
TOKEN_POOLING = (POOL_FACTOR, NUM_PROTECTED_TOKENS)

Distances = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def pools(options: Options) -> bool:
    return options.get(POOL_FACTOR.name, 1) != 1


def check_poolable(request_parts: RequestParts, features: Features, options: Options) -> None:
    """Raise InputError for the first document with too many tokens, if the request pools its vectors."""
    if NUM_PROTECTED_TOKENS.name in options and POOL_FACTOR.name not in options:
        raise InputError.at(
            f"parameter {NUM_PROTECTED_TOKENS.name}", f"needs {POOL_FACTOR.name}; send both, or neither"
        )
    if not pools(options):
        return
    lengths = iter(features[INPUT_IDS.name].of_items.tolist())
    for framed in request_parts:
        for i, length in enumerate(islice(lengths, len(framed.part.elements))):
            if length > MAX_TOKENS and not framed.part.is_query:
                problem = f"has {length} tokens; with {POOL_FACTOR.name}, send at most {MAX_TOKENS}"
                raise InputError.at(name_of(framed.part, i), problem)


def with_pooling(rows: Rows, batch: Batch) -> Rows:
    """Return the rows of a forward pass with the vectors of documents pooled, as the options of each item say."""
    if MULTIVECTOR.name not in rows or not any(map(pools, batch.options)):
        return rows
    items = np.split(rows[MULTIVECTOR.name], np.cumsum(rows[MULTIVECTOR_LENGTHS.name])[:-1])
    pooled = [
        pool(vectors, float(options[POOL_FACTOR.name]), int(options.get(NUM_PROTECTED_TOKENS.name, 1)))
        if pools(options) and not is_query
        else vectors
        for vectors, options, is_query in zip(items, batch.options, batch.is_query, strict=True)
    ]
    lengths = item_lengths(pooled)
    return {**rows, MULTIVECTOR.name: np.concatenate(pooled), MULTIVECTOR_LENGTHS.name: lengths}


def pool(vectors: Floats, factor: float, num_protected: int = 1) -> Floats:
    """Return unit vectors: the first ones of a document, then the mean of each cluster, in order of its first member.

    `vectors`, [n, d], have unit length.
    """
    protected, others = vectors[:num_protected], vectors[num_protected:]
    num_clusters = max(int(len(others) // factor), 1)
    if num_clusters >= len(others):
        return normalize(vectors)
    labels = clusters(others, num_clusters)
    means = np.zeros((labels.max() + 1, vectors.shape[1]), np.float32)
    np.add.at(means, labels, others)
    return normalize(np.concatenate([protected, means / np.bincount(labels)[:, None].astype(np.float32)]))


def clusters(vectors: Floats, num_clusters: int) -> Labels:
    """Return the cluster of each vector, numbered in order of their first members; fewer clusters where some tie."""
    cosines = vectors @ vectors.T
    merges = sorted(_merges((1 - cosines).clip(0, 2).astype(np.float64)), key=lambda merge: merge[0])
    largest = merges[len(vectors) - num_clusters - 1][0]
    parents = list(range(len(vectors)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    for distance, i, j in merges:
        if distance <= largest:
            first, second = sorted((root(i), root(j)))
            parents[second] = first
    return np.unique([root(i) for i in range(len(vectors))], return_inverse=True)[1].astype(np.int64)


def _merges(distances: Distances) -> Iterator[tuple[float, int, int]]:
    """Yield the merges of Ward's method, in any order: distance, and a member of each cluster. Uses up `distances`.

    A cluster has the row and the column of one of its members; those of the others are infinite.
    """
    squares = distances
    squares *= squares
    np.fill_diagonal(squares, np.inf)
    sizes = np.ones(len(squares))
    chain: list[int] = []
    for _ in range(len(squares) - 1):
        if not chain:
            chain = [int(np.argmax(sizes > 0))]
        while True:
            near = int(squares[chain[-1]].argmin())
            if len(chain) > 1 and squares[chain[-1], near] >= squares[chain[-1], chain[-2]]:
                break
            chain.append(near)
        i, j = chain.pop(), chain.pop()
        square, size = squares[i, j], sizes[i] + sizes[j]
        row = (sizes[i] + sizes) * squares[i] + (sizes[j] + sizes) * squares[j] - sizes * square
        row /= size + sizes
        row[[i, j]] = np.inf
        row[sizes == 0] = np.inf
        squares[i], squares[:, i] = np.inf, np.inf
        squares[j], squares[:, j] = row, row
        sizes[i], sizes[j] = 0, size
        yield float(square), i, j
