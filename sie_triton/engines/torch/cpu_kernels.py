"""Our kernels for the CPU, called on torch tensors without copying."""

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from sie_triton.system.native.builds import KERNELS
from sie_triton.system.native.loading import library

# The widest vector of the kernels, in floats: the last dimension must be a multiple of it.
LANES = 16


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float


def is_built() -> bool:
    """Return whether the kernels can be used here; the first call may compile them."""
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
    left, right = (1 << 30 if side < 0 else side for side in window)
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
    if failed == -2:  # invalid lengths
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


# Channels in a panel of the 8-bit kernel.
PANEL = 64


class Int8Panels(NamedTuple):
    """Weights of a linear layer in 8 bits, symmetric by output channel."""

    weights: torch.Tensor  # int8 [out / 64, in / 4, 64, 4]
    scales: torch.Tensor  # float32 [out]: the weight is scale times the integer
    offsets: torch.Tensor  # float32 [out]: scale times the sum of the channel's integers


def has_int8() -> bool:
    """Return whether the 8-bit kernel can be used here: it needs a processor with AVX-512 VNNI."""
    built = _library()
    return built is not None and bool(built.sie_has_int8())


def takes_int8(shape: torch.Size) -> bool:
    """Return whether the 8-bit kernel supports a weight of this shape, [out, in]."""
    return shape[0] % PANEL == 0 and shape[1] % LANES == 0


def int8_panels(weight: torch.Tensor) -> Int8Panels:
    """Round a weight, float32 [out, in], to 8 bits."""
    num_out, num_in = weight.shape
    scales = weight.abs().amax(1) / 127
    rounded = torch.round(weight / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None])
    panels = rounded.to(torch.int8).view(num_out // PANEL, PANEL, num_in // 4, 4).transpose(1, 2).contiguous()
    return Int8Panels(panels, scales, scales * rounded.sum(1))


def int8_linear(x: torch.Tensor, panels: Int8Panels, bias: torch.Tensor | None, *, has_gelu: bool) -> torch.Tensor:
    """Multiply float32 [..., in], rounded to 8 bits row by row, with the weights → float32 [..., out].

    A row that is not finite gives NaN. `has_gelu` applies the GELU, with an error of 1e-7 of the input.
    """
    x, num_out = x.contiguous(), len(panels.scales)
    width = x.shape[-1]
    rows, threads = x.numel() // width, torch.get_num_threads()
    rounded, steps, lows = torch.empty(rows, width, dtype=torch.uint8), torch.empty(rows), torch.empty(rows)
    out = torch.empty(*x.shape[:-1], num_out)
    inputs = [each.data_ptr() for each in (rounded, steps, lows)]
    _built().sie_int8_quantize(x.data_ptr(), rows, width, *inputs, threads)
    _built().sie_int8_linear(
        *(*inputs, rows, width),
        *(each.data_ptr() for each in panels),
        *(None if bias is None else bias.data_ptr(), out.data_ptr(), num_out, has_gelu, threads),
    )
    return out


def _built() -> ctypes.CDLL:
    built = _library()
    assert built is not None
    return built


@cache
def _library() -> ctypes.CDLL | None:
    built = library(KERNELS)
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
    if built.sie_has_int8():
        built.sie_int8_quantize.argtypes = [_POINTER, _LONG, _INT, *[_POINTER] * 3, _INT]
        built.sie_int8_quantize.restype = None
        built.sie_int8_linear.argtypes = [*[_POINTER] * 3, _LONG, _INT, *[_POINTER] * 5, *[_INT] * 3]
        built.sie_int8_linear.restype = None
    return built
