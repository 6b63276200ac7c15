"""MUVERA: the vectors of one text as a single vector whose dot product approximates MaxSim.

Dhulipala et al., "MUVERA: Multi-Vector Retrieval via Fixed Dimensional Encodings", 2024. All random numbers are drawn
from NumPy's generator with the configured seed, as SIE draws them, so that encodings of both can be compared.
"""

import ctypes
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import MuveraConfig
from sie_triton.system.native.builds import MUVERA
from sie_triton.system.native.loading import library

LENGTHS_ERROR = "lengths must be 0 or more, and their sum must not exceed the number of vectors"


class Muvera:
    """Encoder of token vectors with `token_dim` entries. Its hash planes and projections are drawn once."""

    def __init__(self, config: MuveraConfig, token_dim: int) -> None:
        self.config = config
        self.dim = config.dim(token_dim)
        self._token_dim = token_dim
        self._width = config.projection_dim or token_dim

    def encode(self, vectors: Floats, lengths: Ints, *, is_query: bool) -> Floats:
        """Encode packed items: vectors [tokens, token_dim]; lengths [n], 0 allowed → [n, dim].

        A query sums the vectors of a partition, a document takes their mean. Raise ValueError if `lengths` reach beyond
        `vectors`.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        if self.config.center_tokens:
            vectors = centred(vectors, lengths)
        values = vectors @ self._projections if self.config.projection_dim else vectors
        products: Floats = np.ascontiguousarray(vectors @ self._planes)
        out = np.zeros((len(lengths), self.dim), np.float32)
        if not self._encode_native(values, products, lengths, out, is_query):
            self._encode_numpy(values, self._ranks(products), lengths, out, is_query)
        if self.config.normalize:
            out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), np.float32(1e-12))
        return out

    def partitions(self, vectors: Floats) -> Ints:
        """Return the Gray-code ranks of sign patterns: [tokens, token_dim] → int32 [tokens, repetitions]."""
        return self._ranks(vectors @ self._planes)

    def _ranks(self, products: Floats) -> Ints:
        shape = len(products), self.config.num_repetitions, self.config.num_simhash_projections
        bits = (products > 0).reshape(shape)
        ranks = np.zeros(bits.shape[:2], np.int32)
        for bit in np.moveaxis(bits, 2, 0):
            ranks = (ranks << 1) + (bit ^ (ranks & 1).astype(bool))
        return ranks.astype(np.int32)

    @cached_property
    def _planes(self) -> Floats:
        """Hash planes, [token_dim, repetitions · k]."""
        shape = (self._token_dim, self.config.num_simhash_projections)
        return np.concatenate([rng.normal(0, 1, shape).astype(np.float32) for rng in self._generators()], axis=1)

    @cached_property
    def _projections(self) -> Floats:
        """Projections, [token_dim, repetitions · width]: each entry of a vector goes, with a sign, to one place."""
        made = np.zeros((self._token_dim, self.config.num_repetitions, self._width), np.float32)
        for repetition, rng in enumerate(self._generators()):
            places = rng.integers(0, self._width, size=self._token_dim)
            made[np.arange(self._token_dim), repetition, places] = rng.choice([-1, 1], size=self._token_dim)
        return made.reshape(self._token_dim, -1)

    @cached_property
    def _sketch(self) -> tuple[Ints, Floats]:
        """Place in the encoding and sign of each entry of the blocks."""
        rng = np.random.default_rng(self.config.seed)
        size = self.config.num_repetitions * self.config.num_partitions * self._width
        places = rng.integers(0, self.dim, size=size).astype(np.int32)
        return places, rng.choice(np.array([-1, 1], np.float32), size=size)

    @cached_property
    def _signed_places(self) -> npt.NDArray[np.uint32]:
        """Place and sign in one number: the highest bit is set if the sign changes."""
        places, signs = self._sketch
        flips: npt.NDArray[np.uint32] = np.where(signs < 0, np.uint32(1 << 31), np.uint32(0))
        return places.astype(np.uint32) | flips

    def _generators(self) -> list[np.random.Generator]:
        return [np.random.default_rng(self.config.seed + i) for i in range(self.config.num_repetitions)]

    def _encode_native(self, values: Floats, products: Floats, lengths: Ints, out: Floats, is_query: bool) -> bool:
        """Encode with the C code; False if it is not compiled."""
        native = library(MUVERA)
        if native is None:
            return False
        ends = np.cumsum(lengths, dtype=np.int64)
        places = self._signed_places if self.config.final_projection_dim else None
        failed = native.sie_muvera(
            _address(values),
            ctypes.c_long(len(values)),
            ctypes.c_long(values.shape[1]),
            ctypes.c_long(self._width if self.config.projection_dim else 0),
            _address(products),
            _address(ends),
            ctypes.c_long(len(lengths)),
            *(self.config.num_repetitions, self.config.num_simhash_projections, self._width, int(not is_query)),
            *(_address(places), _address(out)),
            ctypes.c_long(self.dim),
        )
        if failed == 2:  # wrong lengths
            raise ValueError(LENGTHS_ERROR)
        if failed:
            raise MemoryError("no memory for the blocks of an encoding")
        return True

    def _encode_numpy(self, values: Floats, partitions: Ints, lengths: Ints, out: Floats, is_query: bool) -> None:
        config = self.config
        repetitions = np.arange(config.num_repetitions)[None]
        per_repetition = values.reshape(len(values), values.shape[1] // self._width, self._width)
        if lengths.min(initial=0) < 0 or int(lengths.sum(dtype=np.int64)) > len(values):
            raise ValueError(LENGTHS_ERROR)
        start = 0
        for row, length in zip(out, lengths.tolist(), strict=True):
            item = slice(start, start + length)
            start += length
            blocks = np.zeros((config.num_repetitions, config.num_partitions, self._width), np.float32)
            np.add.at(blocks, (repetitions, partitions[item]), per_repetition[item])
            if not is_query:
                counts = np.zeros(blocks.shape[:2], np.float32)
                np.add.at(counts, (repetitions, partitions[item]), 1)
                blocks /= np.maximum(counts, 1)[..., None]
            if config.final_projection_dim:
                places, signs = self._sketch
                row[:] = np.bincount(places, weights=signs * blocks.ravel(), minlength=self.dim)
            else:
                row[:] = blocks.ravel()


def centred(vectors: Floats, lengths: Ints) -> Floats:
    """Subtract the mean of each item's vectors. Raise ValueError if `lengths` reach beyond `vectors`."""
    if lengths.min(initial=0) < 0 or int(lengths.sum(dtype=np.int64)) > len(vectors):
        raise ValueError(LENGTHS_ERROR)
    items = np.repeat(np.arange(len(lengths)), lengths)
    vectors = vectors[: len(items)]
    sums = np.zeros((len(lengths), vectors.shape[1]), np.float32)
    filled = np.flatnonzero(lengths)
    if len(filled):
        sums[filled] = np.add.reduceat(vectors, (np.cumsum(lengths) - lengths)[filled], axis=0)
    without: Floats = vectors - (sums / np.maximum(lengths, 1).astype(np.float32)[:, None])[items]
    return without


def _address(array: npt.NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)
