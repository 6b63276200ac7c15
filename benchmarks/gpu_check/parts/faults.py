"""Recovery of a worker that ran out of memory or hit a device assert: it answers again, or a replacement does.

This process allocates almost all of the memory to make it scarce. A token id beyond the vocabulary causes a device
assert.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu_check.process import started, wait_for_fork_server
from benchmarks.gpu_check.scope import CannotRun, Finding, Plan, Row
from benchmarks.gpu_check.shapes import VOCABULARY, save
from benchmarks.gpu_check.work import items_of, order_of, query
from benchmarks.lanes import token_batch
from sie_triton.errors import LoadError, ModelError
from sie_triton.pipeline.worker.handle import WorkerDied, WorkerHandle
from sie_triton.pipeline.worker.messages import Load

# Bytes left free for a pass, too few for it; and for a load, besides the weights, for CUDA itself and some passes.
LEFT_FOR_PASS, LEFT_FOR_LOAD = 32_000_000, 1_600_000_000

PATIENCE_S = 15.0

ANSWERED = "an answer"


def provoke(fault: str, plan: Plan) -> Iterator[Finding]:
    """Provoke a fault; report the worker's response and which worker answers next."""
    if fault == "calibration" and not plan.is_gpu:
        raise CannotRun("it needs a GPU, to make its memory scarce while a worker loads")
    with tempfile.TemporaryDirectory() as scratch:
        model = "BERT-base" if fault == "assert" else "BERT, wide"
        order = order_of(model, plan, save(model, plan, Path(scratch)))
        wait_for_fork_server(plan)
        yield {"calibration": in_calibration, "pass": in_pass, "assert": after_assert}[fault](order, plan)


def in_pass(order: Load, plan: Plan) -> Finding:
    """Run a pass that needs more memory than is free."""
    large = token_batch(items_of([512] * (512 if plan.is_dry else 1024)))
    with started(order) as worker:
        with short_of_memory(plan, LEFT_FOR_PASS, worker):
            told = outcome(lambda: worker.forward(large, 1))
        then, seconds = next_answer(worker, order)
    row = {"fault": "out of memory in a pass", "told": told, "then": then, "seconds": seconds}
    return finding(row, is_provoked=told != ANSWERED, passed=told.startswith("MemoryError") and seconds is not None)


def after_assert(order: Load, plan: Plan) -> Finding:
    """Run a pass with a token id that does not exist."""
    beyond = token_batch([np.full(12, VOCABULARY + 1000, np.int32)])
    with started(order) as worker:
        told = outcome(lambda: worker.forward(beyond, 1))
        then, seconds = next_answer(worker, order)
    row = {"fault": "a token beyond the vocabulary", "told": told, "then": then, "seconds": seconds}
    return finding(row, is_provoked=told != ANSWERED, passed=seconds is not None)


def in_calibration(order: Load, plan: Plan) -> Finding:
    """Load a worker that has too little memory to try the larger sub-batches."""
    with started(order) as worker:
        usual = worker.loaded.sub_batch_cost
        weights = worker.loaded.weights_bytes
    wait_until_free(plan)
    row: Row = {"fault": "out of memory in calibration", "usual_sub_batch": usual}
    with short_of_memory(plan, weights + LEFT_FOR_LOAD):
        try:
            with started(replace(order, measurements_dir=order.measurements_dir / "other")) as worker:
                cost = worker.loaded.sub_batch_cost
                row |= {
                    "told": f"sub-batches of {cost}, usually {usual}",
                    "then": outcome(lambda: worker.forward(query(), 1)),
                }
        except LoadError as exc:
            row |= {"told": f"LoadError: {exc}", "then": "it is not loaded"}
    return finding(row, is_provoked=True, passed=row["then"] == ANSWERED)


def finding(row: Row, *, is_provoked: bool, passed: bool) -> Finding:
    """Return the finding; without a verdict if the fault did not occur."""
    verdict = "not provoked"
    if is_provoked:
        row["passed"] = passed
        verdict = "ok" if passed else "FAILED"
    return Finding("faults", f"{row['fault']}: {row['told']}; then {row['then']}: {verdict}", row)


def outcome(work: Callable[[], object]) -> str:
    """Return the caller's result as text: an answer or the error."""
    try:
        work()
    except (MemoryError, ModelError) as exc:
        return f"{type(exc).__name__} {exc}".strip()
    return ANSWERED


def next_answer(worker: WorkerHandle, order: Load) -> tuple[str, float | None]:
    """Send queries until a worker answers; if this one has ended, start a replacement, as its stage does.

    Return which worker answered, and after how many seconds; None if none answered.
    """
    began, failed = time.monotonic(), 0
    while time.monotonic() < began + PATIENCE_S:
        try:
            worker.forward(query(), 1)
            return f"the same worker answers, after {failed} failed passes", time.monotonic() - began
        except WorkerDied:
            worker.close()
            with started(order) as another:
                another.forward(query(), 1)
                return f"a replacement answers, after {failed} failed passes", time.monotonic() - began
        except (MemoryError, ModelError):
            failed += 1
            time.sleep(0.2)
    return f"{failed} passes fail, and the worker does not end", None


@contextmanager
def short_of_memory(plan: Plan, left: int, worker: WorkerHandle | None = None) -> Iterator[None]:
    """Leave `left` bytes of the GPU free; on a CPU, limit `worker` to `left` more bytes."""
    if plan.is_gpu:
        free, _ = torch.cuda.mem_get_info(plan.device)
        taken = torch.empty(max(0, free - left), dtype=torch.uint8, device=plan.device)
        try:
            yield
        finally:
            del taken
            torch.cuda.empty_cache()
        return
    assert worker is not None
    address_space = 4096 * int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
    before = resource.prlimit(worker.pid, resource.RLIMIT_AS, (address_space + left, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(worker.pid, resource.RLIMIT_AS, before)


def wait_until_free(plan: Plan) -> None:
    """Wait until the free memory stops growing after a worker has ended."""
    before = -1
    while (free := torch.cuda.mem_get_info(plan.device)[0]) > before:
        before = free
        time.sleep(0.5)
