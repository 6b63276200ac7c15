"""What is right: how far a computation may be from the reference, and controls that are wrong on purpose."""

import math
from collections.abc import Callable

import torch

from sie_triton.bench.gpu_check.scope import Plan, Row
from sie_triton.engines.torch.attention.kernels import KERNELS, Kernel, eager_attention
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window

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


CONTROLS: dict[str, Kernel] = {"leaking": leaking, "unmasked": unmasked}


def add_controls(plan: Plan) -> None:
    """Let the controls be kernels; put one into the place of the kernel that is to be wrong.

    Attention is computed as in a worker, which does without cuDNN.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    KERNELS.update(CONTROLS)
    if plan.broken:
        KERNELS[plan.broken] = leaking


def differences(ours: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """The worst token's distance relative to its length, and the lowest cosine; [tokens, d] each."""
    ours, expected = ours.float(), expected.float()
    error = float(((ours - expected).norm(dim=1) / expected.norm(dim=1)).max())
    return error, float(torch.cosine_similarity(ours, expected, dim=1).min())


def judged(kernel: str, compare: Callable[[], tuple[float, float, float]]) -> Row:
    """Judge the error, cosine and limit that `compare` returns; `verdict` is for the progress log.

    A control passes if it is found to be wrong. A kernel that raises has failed, as has one whose numbers are not
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
