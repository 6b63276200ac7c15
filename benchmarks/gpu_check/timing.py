"""Durations of work on the device, peak rates, and idle time."""

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import cycle
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.scope import Plan
from sie_triton.contract import Batch
from sie_triton.contract.tensors import INPUT_IDS

ROUNDS = 7


def wait(plan: Plan) -> None:
    """Return once the device has done all of its work."""
    if plan.is_gpu:
        torch.cuda.synchronize(plan.device)


def own_stream(plan: Plan) -> AbstractContextManager[Any]:
    """Run this thread's work on a separate stream, as each lane of a worker does."""
    if not plan.is_gpu:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(plan.device))  # type: ignore[no-untyped-call]


def seconds_of(plan: Plan, work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median duration of `rounds` runs after one to warm up."""
    return statistics.median(all_seconds_of(plan, work, rounds))


def all_seconds_of(plan: Plan, work: Callable[[], object], rounds: int) -> list[float]:
    """Time each of `rounds` runs until the device is done, after one to warm up."""
    seconds = []
    for _ in range(rounds + 1):
        wait(plan)
        started = time.perf_counter()
        work()
        wait(plan)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def peak_flops(plan: Plan, dtype: str) -> float:
    """Measure the FLOP/s of a large matrix product."""
    size = 256 if plan.is_dry else 8192
    left, right = (torch.randn(size, size, device=plan.device, dtype=getattr(torch, dtype)) for _ in range(2))
    return 2.0 * size**3 / seconds_of(plan, lambda: left @ right)


def run_lanes(
    forward: Callable[[Batch], object],
    batches: Sequence[Batch],
    num_lanes: int,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    seconds: float = 0.0,
) -> int:
    """Run passes in `num_lanes` threads for `seconds`, at least one in each; return the number of tokens."""
    ends, work, taking = time.perf_counter() + seconds, cycle(batches), threading.Lock()

    def lane() -> int:
        tokens = 0
        with around():
            while not tokens or time.perf_counter() < ends:
                with taking:
                    batch = next(work)
                forward(batch)
                lengths = batch.features[INPUT_IDS.name].lengths
                assert lengths is not None
                tokens += int(lengths.sum())
        return tokens

    with ThreadPoolExecutor(num_lanes) as pool:
        return sum(each.result() for each in [pool.submit(lane) for _ in range(num_lanes)])


def idle_percent(plan: Plan, work: Callable[[], object]) -> float | None:
    """Percentage of the time from the first kernel of `work` to its last when none ran; None without a profile."""
    activity = ProfilerActivity.CUDA if plan.is_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        work()
        wait(plan)
    results: Any = profiled.profiler and profiled.profiler.kineto_results
    kind = torch.device(plan.device).type.upper()
    events = [each for each in results.events() if each.device_type().name == kind]
    spans: list[tuple[int, int]] = [(each.start_ns(), each.start_ns() + each.duration_ns()) for each in events]
    if not spans:
        return None
    return 100 * (1 - busy(spans) / (max(end for _, end in spans) - min(start for start, _ in spans)))


def busy(spans: Iterable[tuple[int, int]]) -> int:
    """Return the time covered by at least one span.

    >>> busy([(0, 4), (2, 6), (3, 5), (10, 11)])
    7
    """
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def nvml_busy_percent(plan: Plan) -> int | None:
    """Percentage of recent time in which a kernel ran, as in nvidia-smi; None if unavailable."""
    with suppress(Exception):
        return torch.cuda.utilization(plan.device) if plan.is_gpu else None
    return None
