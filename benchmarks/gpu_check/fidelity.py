"""Error limits relative to the reference, and controls: kernels that are wrong on purpose."""

import math
from collections.abc import Callable

import torch

from benchmarks.gpu_check.scope import Plan, Row
from sie_triton.engines.torch.attention.kernels import KERNELS, Kernel, eager_attention
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window

# Maximum error of a token's state, relative to its norm. Rounding in float32 stays below a hundredth of it.
TOLERANCE = 1e-3
TIMES_EAGER = 2.0


def leaking(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Wrong on purpose: the last item takes a token from the one before it."""
    *others, before, last = segments.lengths
    return eager_attention(query, key, value, Segments.of((*others, before - 1, last + 1)), scaling, window)


def unmasked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Wrong on purpose: causal masks and windows are ignored."""
    return eager_attention(query, key, value, segments, scaling, EVERYTHING)


CONTROLS: dict[str, Kernel] = {"leaking": leaking, "unmasked": unmasked}


def add_controls(plan: Plan) -> None:
    """Register the controls as kernels; replace the kernel named by `plan.broken` with a wrong one.

    cuDNN's attention is disabled, as in a worker.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    KERNELS.update(CONTROLS)
    if plan.broken:
        KERNELS[plan.broken] = leaking


def differences(ours: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest distance of a token relative to its norm, and the lowest cosine; [tokens, d] each."""
    ours, expected = ours.float(), expected.float()
    error = float(((ours - expected).norm(dim=1) / expected.norm(dim=1)).max())
    return error, float(torch.cosine_similarity(ours, expected, dim=1).min())


def judged(kernel: str, compare: Callable[[], tuple[float, float, float]]) -> Row:
    """Judge the error, cosine and limit that `compare` returns; `verdict` is for the progress log.

    A control passes if its error exceeds the limit. A kernel fails if it raises or computes values that are not
    finite.
    """
    row: Row = {"error": None, "cosine": None, "passed": False, "is_control": kernel in CONTROLS}
    try:
        error, cosine, limit = compare()
        if not math.isfinite(error):
            raise ArithmeticError("not all numbers are finite")
        row |= {"error": error, "cosine": cosine, "limit": limit}
        row["passed"] = (error <= limit) != row["is_control"]
        verdict = f"off by {error:.1e}, limit {limit:.1e}: {'ok' if row['passed'] else 'FAILED'}"
    except Exception as exc:
        row["raised"] = f"{type(exc).__name__}: {exc}"[:300]
        verdict = f"FAILED, {row['raised']}"
    if row["is_control"]:
        verdict += ", wrong on purpose"
    return row | {"verdict": verdict}
