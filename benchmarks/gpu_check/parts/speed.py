"""Tokens per second of a model by kernel, number format and number of lanes, and the idle time of the GPU."""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.scope import Finding, Plan, Row
from benchmarks.gpu_check.shapes import flops, save
from benchmarks.gpu_check.timing import (
    idle_percent,
    nvml_busy_percent,
    own_stream,
    peak_flops,
    run_lanes,
    wait,
)
from benchmarks.gpu_check.work import adapter_of, batches_of, items_of, libraries, varied_lengths
from sie_triton.engines.torch.attention.kernels import PREFERENCE, reason_unusable
from sie_triton.engines.torch.encoder import PACKED, PADDED

DTYPES = {"cpu": ("float32",), "cuda": ("bfloat16", "float16")}

LANES = (1, 2)


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Measure every kernel and path on texts of many lengths, then the libraries."""
    lengths = varied_lengths(plan)
    with tempfile.TemporaryDirectory() as scratch:
        directory = save(name, plan, Path(scratch))
        for dtype in DTYPES[torch.device(plan.device).type]:
            adapter = adapter_of(name, plan, directory, dtype)
            encoder: Any = adapter.encoder
            batches = batches_of(items_of(lengths), 256 if plan.is_dry else 16384)
            for subject in subjects(plan, dtype):
                encoder.use(PADDED if subject == PADDED else PACKED)
                encoder.kernel = encoder.kernel if subject == PADDED else subject
                for lanes in LANES:
                    row = {"model": name, "dtype": dtype, "subject": subject, "lanes": lanes}
                    work = partial(run_lanes, adapter.forward, batches, lanes, partial(own_stream, plan))
                    yield finding(row, plan, lengths, work)
            del adapter, encoder
        others, notes = libraries(name, plan, directory, lengths)
        yield from notes
        for subject, once in others.items():
            row = {"model": name, "dtype": plan.precision, "subject": subject, "lanes": 1}
            yield finding(row, plan, lengths, partial(rounds, plan, once, sum(lengths)))


def subjects(plan: Plan, dtype: str) -> list[str]:
    """Return the kernels that can run here, fastest first, and the padded path."""
    device, format_ = torch.device(plan.device), getattr(torch, dtype)
    return [*(kernel for kernel in PREFERENCE if reason_unusable(kernel, device, format_) is None), PADDED]


def finding(row: Row, plan: Plan, lengths: list[int], work: Callable[[float], int]) -> Finding:
    """Measure `work`, which computes for a number of seconds and returns the number of tokens."""
    where = f"{row['model']}, {row['dtype']}, {row['subject']}, {row['lanes']} lane(s)"
    try:
        row |= measured(row["model"], row["dtype"], plan, lengths, work)
    except Exception as exc:
        row["raised"] = f"{type(exc).__name__}: {exc}"[:200]
        return Finding("speed", f"{where}: FAILED, {row['raised']}", row)
    idle = "" if row["idle"] is None else f", GPU idle {row['idle']:.0f} %"
    told = f"{row['tokens_per_s']:.0f} tokens/s, {row['share_of_peak']:.1f} % of the peak{idle}"
    return Finding("speed", f"{where}: {told}", row)


def measured(name: str, dtype: str, plan: Plan, lengths: list[int], work: Callable[[float], int]) -> Row:
    """Warm up, measure, then profile for a shorter time."""
    warm_s, measured_s, profiled_s = (0.0, 0.05, 0.0) if plan.is_dry else (0.3, 1.2, 0.2)
    work(warm_s)
    started = time.perf_counter()
    tokens_per_s = work(measured_s) / (time.perf_counter() - started)
    nvml_busy = nvml_busy_percent(plan)
    per_token = flops(name, plan, lengths) / sum(lengths)
    share = 100 * tokens_per_s * per_token / peak_flops(plan, dtype)
    idle = idle_percent(plan, partial(work, profiled_s))
    return {"tokens_per_s": tokens_per_s, "share_of_peak": share, "idle": idle, "nvml_busy": nvml_busy}


def rounds(plan: Plan, work: Callable[[], Any], num_tokens: int, seconds: float) -> int:
    """Repeat `work` for `seconds`, at least once; return the number of tokens."""
    ends, total = time.perf_counter() + seconds, 0
    while not total or time.perf_counter() < ends:
        work()
        wait(plan)
        total += num_tokens
    return total
