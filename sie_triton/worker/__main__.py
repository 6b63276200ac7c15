"""The worker's own side: `python -m sie_triton.worker FD...`, started by `process.Worker` and by nobody else.

The first descriptor brings the order to load, and its end ends the process; each other one is a lane,
served by a thread: batch in, rows or the error out.
"""

import fcntl
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic

from sie_triton.errors import LoadError
from sie_triton.families import Adapter, load_adapter
from sie_triton.families.base import PackedBatch
from sie_triton.scheduling import COST_FUNCTIONS
from sie_triton.spec import ModelSpec
from sie_triton.worker.calibration import Sampler, calibrate
from sie_triton.worker.imports import import_all
from sie_triton.worker.messages import (
    OUT_OF_MEMORY,
    Computed,
    Failed,
    Load,
    Loaded,
    WorkersControl,
    WorkersLane,
)
from sie_triton.worker.out_of_memory import free_unused_memory, is_out_of_memory, used_bytes
from sie_triton.worker.process import RESIDENT_BYTES
from sie_triton.worker.threads import use_threads

log = logging.getLogger("sie_triton.worker")

NO_MEMORY = Failed("there is not enough memory for the pass", OUT_OF_MEMORY)


def main(descriptors: Sequence[int]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("sie_triton").setLevel(logging.INFO)
    ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    control, lanes = WorkersControl(ends[0]), [WorkersLane(end) for end in ends[1:]]
    with suppress(EOFError, OSError):
        order = control.recv()
        try:
            adapter, loaded = load(order)
        except Exception as exc:
            error = load_error(exc)
            control.send(Failed(str(error), error.reason))
            return
        for lane in lanes:
            Thread(target=serve, args=(adapter, order.device, lane), daemon=True).start()
        control.send(loaded)
        control.poll(None)
    # A thread may be in a forward pass that nobody waits for any more.
    os._exit(0)


def load_error(error: Exception) -> LoadError:
    """What is said of it to clients; whether it can be put right is judged by what was raised first."""
    if is_out_of_memory(error.__cause__ or error):
        return LoadError("there is not enough memory for the weights", OUT_OF_MEMORY)
    if isinstance(error, LoadError):
        return error
    log.error("loading failed", exc_info=error)
    if isinstance(error, ImportError):
        return LoadError(f"a package is missing: {error}", "dependency")
    return LoadError(f"loading failed with {type(error).__name__}; the server log has the details")


def load(order: Load) -> tuple[Adapter, Loaded]:
    spec = ModelSpec.from_json(order.spec)
    runtime = spec.runtime
    measurements = order.measurements()
    seconds = Stopwatch()
    import_all()
    seconds.lap("imports")
    hold(order.lock)
    seconds.lap("predecessor")
    adapter = load_adapter(spec, order.directory, order.device, measurements)
    seconds.lap("weights")
    best = 0
    if not runtime.max_sub_batch_cost:
        use_threads(order.device, order.threads)
        limit = spec.max_batch_cost // order.num_lanes
        sampler = Sampler(spec.max_sequence_length, COST_FUNCTIONS[spec.batch_cost])
        best = calibrate(adapter, sampler, limit, measurements)
    num_bytes = used_bytes(order.device)
    measurements.put(**{RESIDENT_BYTES: num_bytes})
    seconds.lap("calibration")
    on_device = 0 if order.device == "cpu" else num_bytes
    return adapter, Loaded(adapter.vocab_size, adapter.weights_bytes, best, seconds.laps, on_device)


class Stopwatch:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = monotonic()

    def lap(self, name: str) -> None:
        now = monotonic()
        self.laps[name], self._since = now - self._since, now


def hold(path: Path) -> None:
    """Until this process ends; waits for the one that holds it now to end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_EX)


def serve(adapter: Adapter, device: str, lane: WorkersLane) -> None:
    """Answer what comes over `lane` until it ends."""
    with suppress(EOFError, OSError):
        while True:
            try:
                forward = lane.recv()
                use_threads(device, forward.threads)
                lane.send(compute(adapter, forward.batch))
                continue
            except MemoryError:
                log.warning("no memory for a batch, or for its rows")
            # Outside the handler: the exception holds on to what there is of them.
            free_unused_memory()
            lane.send(NO_MEMORY)


def compute(adapter: Adapter, batch: PackedBatch) -> Computed | Failed:
    try:
        return Computed(adapter.forward(batch))
    except Exception as exc:
        if not is_out_of_memory(exc):
            log.exception("inference failed")
            return Failed(f"inference failed with {type(exc).__name__}; the server log has the details")
    free_unused_memory()
    return NO_MEMORY


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
