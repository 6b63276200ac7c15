"""An attention kernel compared with eager attention, on random queries, keys and values, in every case of real models.

The reference is eager attention in float32 of the rounded inputs. The limit of the kernel's error is twice the error
of eager attention in the same number format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from benchmarks.gpu_check.fidelity import CONTROLS, TIMES_EAGER, TOLERANCE, add_controls, differences, judged
from benchmarks.gpu_check.scope import CannotRun, Finding, Plan
from sie_triton.engines.torch.attention.kernels import KERNELS, reason_unusable
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window

HEAD_SIZES = (64, 72, 128, 256)
HEADS = {"equal heads": (8, 8), "GQA": (8, 2)}
WINDOWS: dict[str, Window] = {
    "everything": EVERYTHING,
    "window": (48, 48),
    "causal": (-1, 0),
    "causal window": (48, 0),
}

# Single-token items and runs of equal items; the control `leaking` moves the boundary between the last two.
LENGTHS = (1, 1, 7, 64, 64, 65, 129, 512, 1, 300, 33, 33)
TINY_LENGTHS = (1, 1, 60, 60, 1, 33, 33)

# Number of final tokens that are not keys, in items with partial keys.
NOT_KEYS = 5

# Sharp attention, so that a wrong mask shows.
SHARPNESS = 3.0

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Case:
    """An attention shape, for heads of `head_size`."""

    name: str
    head_size: int
    heads: tuple[int, int]
    window: Window
    segments: Segments

    def inputs(self, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return queries, keys and values, [1, heads, tokens, head_size] each; equal in every call."""
        generator = torch.Generator(device).manual_seed(3)
        num_tokens, (heads, kv_heads) = sum(self.segments.lengths), self.heads
        shapes = [(1, count, num_tokens, self.head_size) for count in (heads, kv_heads, kv_heads)]
        query, key, value = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
        return [each.to(dtype) for each in (SHARPNESS * query, key, value)]


def cases(head_size: int, plan: Plan) -> list[Case]:
    """Return all combinations of heads, windows and keys."""
    lengths = TINY_LENGTHS if plan.is_dry else LENGTHS
    keys = {"all keys": lengths, "partial keys": [max(1, length - NOT_KEYS) for length in lengths]}
    return [
        Case(", ".join((heads, window, looked_at)), head_size, HEADS[heads], WINDOWS[window], Segments.of(lengths, of))
        for heads, window, (looked_at, of) in product(HEADS, WINDOWS, keys.items())
    ]


def compare(kernel: str, plan: Plan) -> Iterator[Finding]:
    """Report the worst case of each number format and head size, then the controls."""
    add_controls(plan)
    device, dtypes = torch.device(plan.device), [getattr(torch, name) for name in DTYPES]
    usable = [dtype for dtype in dtypes if reason_unusable(kernel, device, dtype) is None]
    if not usable:
        raise CannotRun(str(reason_unusable(kernel, device, dtypes[0])))
    for dtype, head_size in product(usable, HEAD_SIZES):
        yield worst(kernel, dtype, cases(head_size, plan), plan)
    for control in CONTROLS if kernel == "sdpa" else ():
        masked = [case for case in cases(HEAD_SIZES[0], plan) if case.window != EVERYTHING]
        yield worst(control, usable[0], masked, plan)


def worst(kernel: str, dtype: torch.dtype, given: list[Case], plan: Plan) -> Finding:
    """Report the case nearest to its limit, or the first that raises; `failing` names all that fail."""
    name = str(dtype).removeprefix("torch.")
    rows = [judged(kernel, partial(against_eager, kernel, dtype, case, plan)) | {"worst": case.name} for case in given]
    is_control = rows[0]["is_control"]
    nearness = [row["error"] / row["limit"] if row["error"] is not None else float("inf") for row in rows]
    row = rows[nearness.index(min(nearness) if is_control else max(nearness))]
    row |= {"kernel": kernel, "dtype": name, "head_size": given[0].head_size, "cases": len(given)}
    row["failing"] = [each["worst"] for each in rows if not each["passed"]]
    line = f"{kernel}, {name}, head size {row['head_size']}, {len(given)} cases: {row.pop('verdict')} ({row['worst']})"
    return Finding("kernel_fidelity", line, row)


@torch.inference_mode()
def against_eager(kernel: str, dtype: torch.dtype, case: Case, plan: Plan) -> tuple[float, float, float]:
    """Return the error, the cosine and the limit of a case."""

    def computed(kernel: str, dtype: torch.dtype) -> torch.Tensor:
        query, key, value = (each.to(dtype) for each in inputs)
        return KERNELS[kernel](query, key, value, case.segments, case.head_size**-0.5, case.window)[0].flatten(1)

    inputs = case.inputs(plan.device, dtype)
    expected = computed("eager", torch.float32)
    limit = TOLERANCE + TIMES_EAGER * differences(computed("eager", dtype), expected)[0]
    return *differences(computed(kernel, dtype), expected), limit
