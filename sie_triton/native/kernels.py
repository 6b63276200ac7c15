"""float32 kernels for the CPU, on torch tensors: built once, called without copying."""

import ctypes
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from platformdirs import user_cache_path

from sie_triton.native.compiler import compile_shared

DIRECTORY = Path(__file__).parent
SOURCES = (DIRECTORY / "attention.c", DIRECTORY / "layer_norm.c")
OPTIONS = ("-O3", "-march=native", "-fopenmp")

# Rows of these kernels come in whole vectors.
LANES = 16

UNLIMITED = 1 << 30

_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float


def is_built() -> bool:
    """True if the kernels can be used here; compiles them the first time."""
    return _library() is not None


def takes(x: torch.Tensor) -> bool:
    """True if `x` is of a kind that the kernels compute."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] % LANES == 0


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: tuple[int, ...],
    scaling: float,
    window: tuple[int, int],
) -> torch.Tensor:
    """Attention within items laid end to end: [1, heads, tokens, d] each → [1, tokens, heads, d].

    A query sees keys from window[0] before to window[1] after it; -1 is no limit. MemoryError if the
    scores of the longest item do not fit.
    """
    _, heads, tokens, width = query.shape
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    out = torch.empty(1, tokens, heads, width)
    strides = [stride for x in (query, key, value) for stride in (x.stride(2), x.stride(1))]
    items = np.array(lengths, np.int32)
    left, right = (UNLIMITED if side < 0 else side for side in window)
    failed = _built().sie_packed_attention(
        *(x.data_ptr() for x in (query, key, value, out)),
        (_LONG * 6)(*strides),
        items.ctypes.data,
        *(len(items), heads, key.shape[1], width),
        scaling,
        *(left, right, torch.get_num_threads()),
    )
    if failed:
        raise MemoryError("no memory for attention scores")
    return out


def add_layer_norm(x: torch.Tensor, residual: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
    """norm(x + residual), [..., width] contiguous; overwrites `x`."""
    width = x.shape[-1]
    _built().sie_add_layer_norm(
        *(t.data_ptr() for t in (x, residual, norm.weight, norm.bias, x)),
        *(x.numel() // width, width, norm.eps, torch.get_num_threads()),
    )
    return x


def _built() -> ctypes.CDLL:
    library = _library()
    assert library is not None
    return library


@cache
def _library() -> ctypes.CDLL | None:
    name = f"kernels-{_fingerprint()}.so"
    for directory in (user_cache_path("sie-triton"), Path(tempfile.gettempdir()) / f"sie-triton-{os.getuid()}"):
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not (directory / name).exists():
                with tempfile.TemporaryDirectory(dir=directory) as scratch:
                    if not compile_shared(SOURCES, Path(scratch) / name, *OPTIONS):
                        return None
                    (Path(scratch) / name).replace(directory / name)
            return _bind(ctypes.CDLL(str(directory / name)))
        except OSError:
            continue
    return None


def _fingerprint() -> str:
    """Changes with the sources, the options and the processor."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    sources = b"".join(path.read_bytes() for path in sorted(DIRECTORY.glob("*.[ch]")))
    return hashlib.sha256(sources + repr(OPTIONS).encode() + flags.encode()).hexdigest()[:16]


def _bind(library: ctypes.CDLL) -> ctypes.CDLL:
    library.sie_packed_attention.argtypes = [
        *[_POINTER] * 4,
        _LONG * 6,
        _POINTER,
        *[_INT] * 4,
        _FLOAT,
        *(_LONG, _LONG, _INT),
    ]
    library.sie_packed_attention.restype = _INT
    library.sie_add_layer_norm.argtypes = [*[_POINTER] * 5, _LONG, _INT, _FLOAT, _INT]
    library.sie_add_layer_norm.restype = None
    return library
