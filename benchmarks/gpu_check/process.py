"""Worker processes as a stage runs them: forked by the fork server, loaded, killed; and their memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from benchmarks.gpu_check.scope import Plan
from sie_triton.pipeline.worker.handle import WorkerHandle
from sie_triton.pipeline.worker.messages import Load
from sie_triton.system.host.process_memory import share_of
from sie_triton.system.processes.fork_server import fork_server_ids, importing_ids
from sie_triton.system.processes.pids import is_alive

FORWARD_S, LOAD_S = 30.0, 60.0

# Polling interval for memory, in seconds.
LOOK_S = 0.002

# Memory that other processes may have allocated meanwhile, in bytes.
NOISE_BYTES = 32_000_000


def wait_for_fork_server(plan: Plan) -> None:
    """Wait until the fork server has imported everything, so that imports do not count as part of a load."""
    ends = time.monotonic() + LOAD_S
    while not fork_server_ids(plan.fork_server) or importing_ids(plan.fork_server):
        if time.monotonic() > ends:
            raise TimeoutError(f"the fork server is not ready after {LOAD_S:.0f} s")
        time.sleep(0.05)


def start(order: Load) -> WorkerHandle:
    """Start a worker and wait until it has loaded. Raise LoadError if it cannot."""
    return WorkerHandle(order, lambda worker: None, forward_timeout_s=FORWARD_S, load_timeout_s=LOAD_S)


@contextmanager
def started(order: Load) -> Iterator[WorkerHandle]:
    """Yield a loaded worker; kill it at the end of the context."""
    worker = start(order)
    try:
        yield worker
    finally:
        worker.kill()
        worker.close()


class Gauge:
    """Measures a worker's memory by the driver, or on a CPU by the system; excludes this process's CUDA context."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._before = self._used() if plan.is_gpu else 0

    def taken(self, pid: int) -> int:
        """Return the bytes allocated since the gauge was created."""
        return self._used() - self._before if self._plan.is_gpu else share_of(pid).own

    def freed_ms(self, pid: int, patience_s: float = 10.0) -> float | None:
        """Wait until a killed worker's memory is free; return the milliseconds, or None after `patience_s`."""
        began = time.monotonic()
        while time.monotonic() < began + patience_s:
            if not is_alive(pid) and self.taken(pid) <= NOISE_BYTES:
                return 1e3 * (time.monotonic() - began)
            time.sleep(LOOK_S)
        return None

    def _used(self) -> int:
        free, total = torch.cuda.mem_get_info(self._plan.device)
        return total - free


def used_by_controller(plan: Plan, pid: int) -> int | None:
    """Return the device memory that the controller would measure; None if a package for that is missing."""
    with suppress(ModuleNotFoundError):
        from sie_triton.controller.memory import Meter, worker_bytes

        return Meter(plan.device, 0).measure(pid).used if plan.is_gpu else worker_bytes(pid)
    return None


def megabytes(size: int | None) -> Any:
    return None if size is None else round(size / 1e6)
