"""Our float32 kernels for the CPU: compiled once, called on torch tensors without copying."""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch

from sie_triton.native.library import library

SOURCES = Path(__file__).with_name("native")

# The widest vector of the kernels, in floats: the last dimension must be a multiple of it.
LANES = 16

UNLIMITED = 1 << 30

# Return value of the C code for invalid lengths.
BAD_LENGTHS = -2

_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float


def is_built() -> bool:
    """Return whether the kernels can be used here; the first call compiles them."""
    return _library() is not None


def takes(x: torch.Tensor) -> bool:
    """Return whether the kernels support the device, dtype and width of `x`."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] % LANES == 0


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: tuple[int, ...],
    keys: tuple[int, ...],
    scaling: float,
    window: tuple[int, int],
) -> torch.Tensor:
    """Compute attention within items laid end to end: inputs [1, heads, tokens, d] each → [1, tokens, heads, d].

    Only the first `keys` tokens of an item are attended to. A query attends to keys from window[0] before to window[1]
    after it; -1 is no limit. MemoryError if the scores of the longest item do not fit in memory; ValueError if lengths
    do not sum to the tokens, or an item has more keys than tokens.
    """
    if len(keys) != len(lengths):
        raise ValueError(f"there are {len(lengths)} lengths and {len(keys)} keys; there must be one of each per item")
    _, heads, tokens, width = query.shape
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    out = torch.empty(1, tokens, heads, width)
    strides = [stride for x in (query, key, value) for stride in (x.stride(2), x.stride(1))]
    items, seen = np.array(lengths, np.int32), np.array(keys, np.int32)
    left, right = (UNLIMITED if side < 0 else side for side in window)
    failed = _built().sie_packed_attention(
        *(x.data_ptr() for x in (query, key, value, out)),
        (_LONG * 6)(*strides),
        tokens,
        items.ctypes.data,
        seen.ctypes.data,
        *(len(items), heads, key.shape[1], width),
        scaling,
        *(left, right, torch.get_num_threads()),
    )
    if failed == BAD_LENGTHS:
        raise ValueError("lengths must sum to the tokens, and no item may have more keys than tokens")
    if failed:
        raise MemoryError("no memory for attention scores")
    return out


def add_layer_norm(x: torch.Tensor, residual: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
    """Return norm(x + residual), [..., width]; inputs are contiguous, and `x` is overwritten."""
    width = x.shape[-1]
    _built().sie_add_layer_norm(
        *(t.data_ptr() for t in (x, residual, norm.weight, norm.bias, x)),
        *(x.numel() // width, width, norm.eps, torch.get_num_threads()),
    )
    return x


def _built() -> ctypes.CDLL:
    built = _library()
    assert built is not None
    return built


@cache
def _library() -> ctypes.CDLL | None:
    built = library(SOURCES)
    return None if built is None else _bind(built)


def _bind(built: ctypes.CDLL) -> ctypes.CDLL:
    built.sie_packed_attention.argtypes = [
        *[_POINTER] * 4,
        _LONG * 6,
        _LONG,
        _POINTER,
        _POINTER,
        *[_INT] * 4,
        _FLOAT,
        *(_LONG, _LONG, _INT),
    ]
    built.sie_packed_attention.restype = _INT
    built.sie_add_layer_norm.argtypes = [*[_POINTER] * 5, _LONG, _INT, _FLOAT, _INT]
    built.sie_add_layer_norm.restype = None
    return built
