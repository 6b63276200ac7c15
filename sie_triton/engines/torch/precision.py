"""Number formats: the requested precision → a dtype that the device supports well."""

import logging

import torch

from sie_triton.engines.torch.cpu_kernels import has_int8

INT8 = "int8"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_log = logging.getLogger(__name__)


def choose_dtype(precision: str, device: str) -> torch.dtype:
    """Return the dtype; default: float32 on a CPU, float16 on a GPU. On a CPU, float16 becomes a native format.

    int8 is float32 outside linear layers. Without a kernel for it, it becomes a native format, on a GPU float16.
    """
    if device != "cpu":
        if precision == INT8:
            _log.warning("int8 was requested, which is for CPUs: using float16")
        return DTYPES.get(precision, torch.float16)
    if precision == "float16" or (precision == INT8 and not has_int8()):
        chosen = "bfloat16" if computes_bfloat16() else "float32"
        _log.warning("%s was requested, but this CPU does not support it: using %s", precision, chosen)
        return DTYPES[chosen]
    return DTYPES.get(precision, torch.float32)


def computes_int8(precision: str, device: str) -> bool:
    """Return whether linear layers of encoders are computed in 8 bits."""
    return precision == INT8 and device == "cpu" and has_int8()


def computes_bfloat16() -> bool:
    """True if the processor multiplies bfloat16 natively (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
