"""Cost of a new shape: cuDNN's attention may build a plan for each, and almost every ragged batch has a new shape."""

import statistics
import time
from collections.abc import Iterator, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.timing import wait

WITHOUT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# Setting → whether cuDNN may be chosen, and whether it is preferred.
SETTINGS: Mapping[str, tuple[bool, bool]] = {"off": (False, False), "on": (True, False), "on, and first": (True, True)}

HEADS, HEAD_SIZE = 12, 64


def measure(plan: Plan) -> Iterator[Finding]:
    """Call SDPA twice with each of 20 shapes that are new to the process, in each setting."""
    num_shapes = 3 if plan.is_dry else 20
    for number, (setting, (is_on, is_first)) in enumerate(SETTINGS.items()):
        backends = [SDPBackend.CUDNN_ATTENTION, *WITHOUT] if is_on else WITHOUT
        # Lengths unique to this setting; the first is not counted, since libraries initialise in it.
        lengths = [67 + number + len(SETTINGS) * 5 * step for step in range(num_shapes + 1)]
        with sdpa_kernel(backends, set_priority=is_first):
            first, again, backend = _calls(lengths, plan)
        row = {"setting": setting, "backend": backend, "shapes": num_shapes, "first_ms": statistics.median(first)}
        row |= {"worst_ms": max(first), "again_ms": statistics.median(again)}
        told = f"{row['first_ms']:.2f} ms at first (worst {row['worst_ms']:.1f}), {row['again_ms']:.3f} after it"
        yield Finding("cudnn", f"cuDNN {setting}, {backend}: {told}", row)


def _calls(lengths: list[int], plan: Plan) -> tuple[list[float], list[float], str]:
    """Return the milliseconds of the first and second call for each length, and the chosen backend."""
    dtype = getattr(torch, plan.precision)
    first: list[float] = []
    again: list[float] = []
    for length in lengths:
        query, key, value = (torch.randn(4, HEADS, length, HEAD_SIZE, device=plan.device, dtype=dtype) for _ in "qkv")
        backend = SDPBackend(torch._fused_sdp_choice(query, key, value)).name
        for milliseconds in (first, again):
            wait(plan)
            started = time.perf_counter()
            sdpa(query, key, value)
            wait(plan)
            milliseconds.append(1e3 * (time.perf_counter() - started))
    return first[1:], again[1:], backend
