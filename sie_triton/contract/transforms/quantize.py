"""Quantisation: vectors in fewer bits, as rows of raw little-endian bytes."""

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats

Bytes = npt.NDArray[np.uint8]


def quantize(vectors: Floats, dtype: str) -> Bytes:
    """Quantise each row separately: [rows, d] → uint8 [rows, bytes].

    float16: the nearest value, infinite beyond the range. int8: x / max|x| · 127. uint8: maps the row's range to 0…255,
    and a constant row to 0. Both round half to even, and read NaN as 0 and an infinite value as the largest finite one.
    binary, ubinary: one bit per entry, set if x > 0, the first entry in the highest bit; zeros fill the last byte.
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(vectors.astype("<f2")).view(np.uint8)
    if dtype in ("binary", "ubinary"):
        return np.packbits(vectors > 0, axis=1)
    finite = np.nan_to_num(vectors)
    return (_int8(finite) if dtype == "int8" else _uint8(finite)).view(np.uint8)


def scales(vectors: Floats, dtype: str) -> Floats:
    """Return step and offset of each row: [rows, d] → float32 [rows, 2]. An entry q stands for offset + step · q.

    >>> scales(np.array([[-1.0, 1.0]], np.float32), "uint8")[:, 1].tolist()
    [-1.0]
    """
    finite = np.nan_to_num(vectors)
    if dtype == "int8":
        step = _largest(finite) / np.float32(127)
        return np.concatenate([step, np.zeros_like(step)], axis=1)
    low, span = _range(finite)
    return np.concatenate([span * np.float32(2 / 255), low * np.float32(2)], axis=1)


def _int8(vectors: Floats) -> npt.NDArray[np.int8]:
    scaled: Floats = vectors / _largest(vectors) * np.float32(127)
    return np.rint(scaled).astype(np.int8)


def _largest(vectors: Floats) -> Floats:
    """Return the largest magnitude of each row, [rows, 1]; 1 for a row of zeros."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    return np.where(largest == 0, np.float32(1), largest)


def _uint8(vectors: Floats) -> Bytes:
    low, span = _range(vectors)
    scaled: Floats = (vectors * np.float32(0.5) - low) / np.where(span > 0, span, np.float32(1)) * np.float32(255)
    return np.rint(scaled).astype(np.uint8)


def _range(vectors: Floats) -> tuple[Floats, Floats]:
    """Return half of each row's minimum and half of its range, [rows, 1]: the range may not fit in a float32."""
    halves = vectors * np.float32(0.5)
    low: Floats = halves.min(axis=1, keepdims=True, initial=np.inf)
    span: Floats = halves.max(axis=1, keepdims=True, initial=-np.inf) - low
    return low, span
