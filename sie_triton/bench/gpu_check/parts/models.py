"""Every attention kernel that runs here, and passes as CUDA graphs, beside the library's own eager attention.

The reference is computed in float32 from the weights as rounded to the number format, so that what differs is the
computation. A kernel may be off by twice what the eager attention in that format is: a forgotten mask is off by far
more, which controls that are wrong on purpose show in each run.
"""

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from sie_triton.bench.architectures import sharpen
from sie_triton.bench.gpu_check.scope import Finding, Plan
from sie_triton.bench.gpu_check.shapes import build, lengths_of
from sie_triton.engines.torch.attention.kernels import KERNELS, eager_attention, why_not
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window
from sie_triton.engines.torch.captured import SIZES, CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, PADDED, Encoder

COMPARED = ("BERT-base", "ModernBERT-base", "Qwen3-0.6B")
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "float16", "bfloat16")}

# Of a token's state, relative to its length. Rounding in float32 stays below a hundredth of it.
TOLERANCE = 1e-3
TIMES_EAGER = 2.0


def leaking(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Wrong: the last item but one loses a token to the last."""
    *others, before, last = segments.lengths
    return eager_attention(query, key, value, Segments.of((*others, before - 1, last + 1)), scaling, window)


def unmasked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Wrong: causal masks and windows are forgotten."""
    return eager_attention(query, key, value, segments, scaling, EVERYTHING)


def compare(architecture: str, plan: Plan) -> Iterator[Finding]:
    """One comparison for each number format and each way to compute."""
    KERNELS.update({"leaking": leaking, "unmasked": unmasked})
    if plan.broken:
        KERNELS[plan.broken] = leaking
    lengths = np.array(lengths_of(architecture, plan), np.int32)
    input_ids = np.random.default_rng(1).integers(1000, 20000, lengths.sum(), dtype=np.int32)
    items = np.split(input_ids, np.cumsum(lengths)[:-1])
    model = sharpen(build(architecture, plan))
    for name in DTYPES[torch.device(plan.device).type]:
        dtype = getattr(torch, name)
        ours = Encoder(copy.deepcopy(model).to(dtype), "eager")
        truth = Encoder(copy.deepcopy(model).to(dtype).float(), "eager")
        expected = torch.cat([truth.eager(item) for item in items])
        eager, _ = differences(torch.cat([ours.eager(item) for item in items]), expected)
        limit = TOLERANCE + TIMES_EAGER * eager
        for kernel in ways(plan.device, dtype, architecture):
            entry = {"architecture": architecture, "dtype": name, "kernel": kernel, "limit": limit}
            yield finding(entry, partial(states, ours, kernel, input_ids, lengths), expected)
        few = lengths[lengths.cumsum() <= SIZES[-1]]
        entry = {"architecture": architecture, "dtype": name, "kernel": "captured", "limit": limit}
        yield finding(entry, partial(captured_states, ours, input_ids, few), expected[: few.sum()])


def ways(device: str, dtype: torch.dtype, architecture: str) -> list[str]:
    """Kernels that run here, the padded path, and the controls."""
    controls = ["leaking"] if architecture == "BERT-base" else ["leaking", "unmasked"]
    kernels = [name for name in KERNELS if name not in ("leaking", "unmasked")]
    return [*(n for n in kernels if why_not(n, torch.device(device), dtype) is None), PADDED, *controls]


def states(encoder: Encoder, kernel: str, input_ids: Any, lengths: Any) -> torch.Tensor:
    """Token states by `kernel`, or by the padded path."""
    if kernel != PADDED:
        encoder.kernel = kernel
    encoder.use(PADDED if kernel == PADDED else PACKED)
    return encoder.hidden_states(input_ids, lengths)


def captured_states(encoder: Encoder, input_ids: Any, lengths: Any) -> torch.Tensor:
    """By a CUDA graph, of as many items as it has tokens; recordings of other sizes come after it."""
    passes, ids = CapturedPasses(encoder), input_ids[: lengths.sum()]
    encoder.use(PACKED)
    states = passes.hidden_states(ids, lengths, lengths, np.zeros_like(ids), encoder.first_position)
    passes.serve(SIZES[-1], SIZES[-1])
    return states


def finding(entry: dict[str, Any], compute: Any, expected: torch.Tensor) -> Finding:
    """A control passes if it is found to be wrong; a kernel that raises is one that failed."""
    is_control = entry["kernel"] in ("leaking", "unmasked")
    try:
        error, cosine = differences(compute(), expected)
        if not math.isfinite(error):
            raise ArithmeticError("its states are not finite")
        entry |= {"error": error, "cosine": cosine, "passed": (error <= entry["limit"]) != is_control}
    except Exception as exc:
        entry |= {"error": None, "cosine": None, "passed": False, "raised": f"{type(exc).__name__}: {exc}"[:300]}
    entry["is_control"] = is_control
    verdict = "ok" if entry["passed"] else ", ".join(filter(None, ["FAILED", entry.get("raised")]))
    off = "-" if entry["error"] is None else f"{entry['error']:.1e}"
    line = f"{entry['architecture']}, {entry['dtype']}, {entry['kernel']}: off by {off}, limit {entry['limit']:.1e}"
    return "comparisons", f"{line}: {verdict}", entry


def differences(ours: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """The worst token's distance relative to its length, and the lowest cosine; [tokens, d] each."""
    ours, expected = ours.float(), expected.float()
    error = float(((ours - expected).norm(dim=1) / expected.norm(dim=1)).max())
    return error, float(torch.cosine_similarity(ours, expected, dim=1).min())
