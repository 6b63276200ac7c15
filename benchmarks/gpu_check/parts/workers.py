"""Real worker processes: load, calibration, passes on one lane and two, and the time to free memory after kill -9."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_check.process import (
    Gauge,
    megabytes,
    started,
    used_by_controller,
    wait_for_fork_server,
)
from benchmarks.gpu_check.scope import Finding, Plan, Row
from benchmarks.gpu_check.shapes import save
from benchmarks.gpu_check.timing import all_seconds_of, run_lanes
from benchmarks.gpu_check.work import (
    NUM_LANES,
    Library,
    batches_of,
    cosine,
    items_of,
    order_of,
    query,
    varied_lengths,
)
from benchmarks.lanes import token_batch
from sie_triton.pipeline.worker.expected import expected_bytes
from sie_triton.pipeline.worker.handle import WorkerHandle

# Minimum cosine of a worker's vectors and those of transformers in float32.
ALIKE = 0.99


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Measure a first worker, which calibrates, and a second, which uses the first's measurements."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = save(name, plan, Path(scratch))
        items = items_of([1, 7, 33, 64])
        expected = Library(name, plan, directory, "float32").vectors(items)
        order = order_of(name, plan, directory)
        wait_for_fork_server(plan)
        for start in ("first", "again"):
            gauge, estimated, controller = Gauge(plan), expected_bytes(order), used_by_controller(plan, os.getpid())
            began = time.perf_counter()
            with started(order) as worker:
                row = {"model": name, "start": start, "load_s": time.perf_counter() - began}
                row |= {"estimated": megabytes(estimated)} | memory(worker, plan, gauge, controller or 0)
                if start == "first":
                    alike = cosine(worker.forward(token_batch(items), 1)["dense"], expected)
                    yield from lanes(name, worker, plan, alike)
                row |= freed(worker, gauge)
            yield Finding("workers", row_text(row), row)


def memory(worker: WorkerHandle, plan: Plan, gauge: Gauge, controller: int) -> Row:
    """Return the time and memory of the load, as each component reports it."""
    loaded, seen = worker.loaded, used_by_controller(plan, worker.pid)
    row: Row = {"calibration_s": loaded.seconds.get("calibration"), "sub_batch_cost": loaded.sub_batch_cost}
    row |= {"seconds": dict(loaded.seconds), "weights": megabytes(loaded.weights_bytes)}
    row |= {"reported": megabytes(loaded.device_bytes), "driver": megabytes(gauge.taken(worker.pid))}
    # On a GPU the controller measures the whole device.
    return row | {"controller": megabytes(seen and seen - (controller if plan.is_gpu else 0))}


def freed(worker: WorkerHandle, gauge: Gauge) -> Row:
    """Kill the worker with SIGKILL; return the milliseconds until its memory is free."""
    os.kill(worker.pid, signal.SIGKILL)
    ms = gauge.freed_ms(worker.pid)
    return {"freed_ms": ms, "passed": ms is not None}


def row_text(row: Row) -> str:
    freed_after = (
        "is not free after kill -9: FAILED"
        if row["freed_ms"] is None
        else f"free {row['freed_ms']:.0f} ms after kill -9"
    )
    took = f"load {row['load_s']:.1f} s, sub-batches of {row['sub_batch_cost']}"
    sizes = f"estimated {row['estimated']} MB, worker {row['reported']}, driver {row['driver']}"
    return f"{row['model']}, {row['start']}: {took}; {sizes}; {freed_after}"


def lanes(name: str, worker: WorkerHandle, plan: Plan, alike: float) -> Iterator[Finding]:
    """Measure one query's latency, and tokens per second with as many callers as lanes."""
    batches = batches_of(items_of(varied_lengths(plan)), worker.loaded.sub_batch_cost)
    short = query()
    ms = 1e3 * statistics.median(all_seconds_of(plan, lambda: worker.forward(short, 1), 5 if plan.is_dry else 200))
    for num_lanes in range(1, NUM_LANES + 1):
        began = time.perf_counter()
        tokens = run_lanes(
            lambda batch: worker.forward(batch, 1), batches, num_lanes, seconds=0.1 if plan.is_dry else 2
        )
        rate = tokens / (time.perf_counter() - began)
        row = {"model": name, "lanes": num_lanes, "query_ms": ms, "tokens_per_s": rate}
        row |= {"cosine": alike, "passed": alike >= ALIKE}
        verdict = f"cosine {alike:.5f}: {'ok' if row['passed'] else 'FAILED'}"
        yield Finding("lanes", f"{name}, {num_lanes} lane(s): {rate:.0f} tokens/s, a query {ms:.2f} ms, {verdict}", row)
