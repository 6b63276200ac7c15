"""Vectors in fewer bits: rows of raw little-endian bytes."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def quantize(vectors: Floats, dtype: str) -> Bytes:
    """[rows, d] → uint8 [rows, bytes], each row for itself.

    float16: nearest; beyond its range infinite. int8: x / max|x| · 127. uint8: the row's range to 0…255, a constant
    row to 0. Both round half to even, take NaN for 0 and an infinite value for the largest finite one. binary,
    ubinary: one bit an entry, set where x > 0, the first entry in the highest bit; zeros fill the last byte.
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(vectors.astype("<f2")).view(np.uint8)
    if dtype in ("binary", "ubinary"):
        return np.packbits(vectors > 0, axis=1)
    finite = np.nan_to_num(vectors)
    return (_int8(finite) if dtype == "int8" else _uint8(finite)).view(np.uint8)


def _int8(vectors: Floats) -> npt.NDArray[np.int8]:
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    scale = np.where(largest == 0, np.float32(1), largest)
    scaled: Floats = vectors / scale * np.float32(127)
    return np.rint(scaled).astype(np.int8)


def _uint8(vectors: Floats) -> Bytes:
    # Halves of all: the range of a row may be too large for a float32, its half is not, and the quotient is the same.
    halves = vectors * np.float32(0.5)
    low = halves.min(axis=1, keepdims=True, initial=np.inf)
    span = halves.max(axis=1, keepdims=True, initial=-np.inf) - low
    scaled: Floats = (halves - low) / np.where(span > 0, span, np.float32(1)) * np.float32(255)
    return np.rint(scaled).astype(np.uint8)
