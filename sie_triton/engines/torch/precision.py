"""Number formats: the requested precision → a dtype that the device supports well."""

import logging

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_log = logging.getLogger(__name__)


def choose_dtype(precision: str, device: str) -> torch.dtype:
    """Return the dtype; default: float32 on a CPU, float16 on a GPU. On a CPU, float16 becomes a native format."""
    if not precision:
        return torch.float32 if device == "cpu" else torch.float16
    if precision == "float16" and device == "cpu":
        chosen = "bfloat16" if computes_bfloat16() else "float32"
        _log.warning("float16 was requested, but this CPU does not support it: using %s", chosen)
        return DTYPES[chosen]
    return DTYPES[precision]


def computes_bfloat16() -> bool:
    """True if the processor multiplies bfloat16 natively (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
