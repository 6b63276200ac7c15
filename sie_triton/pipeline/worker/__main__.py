"""The worker process: `python -m sie_triton.pipeline.worker FD...`, started by a `WorkerHandle` alone.

The first descriptor is the control channel: it carries Load and the orders after it, and the process ends when it
closes. Every other descriptor is a lane, served by its own thread: batch in, rows or an error out.
"""

import fcntl
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic

import numpy as np

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import Engine, open_engine
from sie_triton.engines.torch.process import (
    configure_libraries,
    import_all,  # noqa: F401  # called by the fork server
)
from sie_triton.errors import BusyError, LoadError, ModelError, OutOfMemory, SIEError
from sie_triton.models.families import Adapter, family, fitted, load_adapter, model_of
from sie_triton.models.families.shared.token_pooling import with_pooling
from sie_triton.models.inputs import kind_of
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.pipeline.scheduling import COST_FUNCTIONS
from sie_triton.pipeline.worker.calibration import Calibration, MeasuredDevice, Sampler, calibrate
from sie_triton.pipeline.worker.device_bytes import DeviceBytes
from sie_triton.pipeline.worker.expected import OF_PASSES, RESIDENT_BYTES
from sie_triton.pipeline.worker.graphs import Graphs
from sie_triton.pipeline.worker.messages import (
    OUT_OF_MEMORY,
    AddLora,
    Done,
    Failed,
    Load,
    Loaded,
    PassResult,
    RemoveLora,
    WorkersControl,
    WorkersLane,
    WriteTokenizer,
)
from sie_triton.system.host.device import hide_other_gpus
from sie_triton.system.processes.confined import limit_resources
from sie_triton.system.processes.freed_memory import PassReturner, keep_returning
from sie_triton.system.telemetry import logs

log = logging.getLogger("sie_triton.pipeline.worker")

# Limits of a process that makes a tokenizer: code of the library reads files that may be hostile.
TOKENIZER_BYTES = 4 << 30

NO_MEMORY = Failed.of(OutOfMemory("there is not enough memory for the pass"))


def main(descriptors: Sequence[int]) -> None:
    logs.configure(level=logging.WARNING)
    logging.getLogger("sie_triton").setLevel(logging.INFO)
    configure_libraries()
    ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    control, lanes = WorkersControl(ends[0]), [WorkersLane(end) for end in ends[1:]]
    with suppress(EOFError, OSError):
        order = control.recv()
        if isinstance(order, WriteTokenizer):
            control.send(tokenizer_written(order))
            return
        assert isinstance(order, Load)
        try:
            engine, adapter, loaded = load(order)
        except Exception as exc:
            control.send(failed(exc))
            return
        engine.release_threads()
        graphs, memory = Graphs(engine, order), DeviceBytes(engine, loaded.device_bytes)
        keep_returning(PassReturner(loaded.pass_bytes, graphs.passes))
        for lane in lanes:
            Thread(target=serve, args=(engine, adapter, lane, graphs, memory), daemon=True).start()
        control.send(loaded)
        graphs.start()
        while True:
            control.send(carried_out(control.recv(), engine, adapter))
            engine.release_threads()
    # Threads may still be in forward passes whose results are no longer needed.
    os._exit(0)


def tokenizer_written(order: WriteTokenizer) -> Done | Failed:
    # Imports transformers, which not every worker needs.
    from sie_triton.pipeline.worker.tokenizer import write_tokenizer

    limit_resources(memory_bytes=TOKENIZER_BYTES, file_bytes=TOKENIZER_BYTES, seconds=120)
    try:
        write_tokenizer(order)
        return Done()
    except Exception as exc:
        return failed(exc)


def carried_out(order: object, engine: Engine, adapter: Adapter) -> Done | Failed:
    """Carry out an order after the load, while forward passes continue."""
    try:
        with naming_out_of_memory(engine, "the LoRA adapter"):
            if isinstance(order, AddLora):
                num_bytes = adapter.encoder.add_lora(order.name, order.directory)
                return Done(num_bytes, on_device(engine))
            assert isinstance(order, RemoveLora)
            adapter.encoder.remove_lora(order.name)
            return Done(device_bytes=on_device(engine))
    except Exception as exc:
        return failed(exc)


def failed(error: Exception) -> Failed:
    return Failed.of(load_error(error))


def load_error(error: Exception) -> LoadError:
    """Convert `error` to the LoadError for clients; log an unexpected error."""
    if isinstance(error, LoadError):
        return error
    if isinstance(error, SIEError):
        return LoadError(str(error), "network" if isinstance(error, BusyError) else "failed")
    log.error("loading failed", exc_info=error)
    if isinstance(error, ImportError):
        return LoadError(f"a package is missing: {error}", "dependency")
    return LoadError(f"loading failed with {type(error).__name__}; workers.log has the details")


def load(order: Load) -> tuple[Engine, Adapter, Loaded]:
    # A stage's locale may lack letters of the path, which libraries that are not written in Python then refuse.
    order = replace(order, directory=Path(os.fsdecode(os.fsencode(order.directory))))
    spec = fitted(ModelSpec.from_json(order.spec), order.directory)
    measurements = order.measurements()
    seconds = Stopwatch()
    engine = open_engine(spec, hide_other_gpus(order.device), measurements)
    seconds.lap("imports")
    hold(order.lock)
    seconds.lap("predecessor")
    with naming_out_of_memory(engine, "the weights"):
        adapter = load_adapter(spec, order.directory, engine)
    seconds.lap("weights")
    best = Calibration(0, 0.0, 0.0)
    if not spec.runtime.max_sub_batch_cost:
        engine.use_threads(order.threads)
        limit = max(1, spec.max_batch_cost // order.num_lanes)
        best = Calibration(limit, 0.0, 0.0)
        if not spec.endpoint:
            with naming_out_of_memory(engine, "a forward pass beside the weights"):
                device = MeasuredDevice(engine, order.num_lanes)
                best = calibrate(adapter, sampler_of(spec, adapter), limit, measurements, device)
    engine.free_unused_memory()  # memory of trial passes would count as resident
    num_bytes, is_on_cpu = engine.used_bytes(), engine.device == "cpu"
    # Where no pass was measured, it may take as much as the worker.
    pass_bytes = order.num_lanes * (best.pass_bytes or num_bytes) if is_on_cpu else 0
    measurements.put(**{RESIDENT_BYTES: num_bytes, **({OF_PASSES: pass_bytes} if best.pass_bytes else {})})
    seconds.lap("calibration")
    loaded = Loaded(
        adapter.limits,
        spec.max_sequence_length,
        adapter.weights_bytes,
        best.sub_batch_cost,
        seconds.laps,
        on_device(engine),
        best.cost_per_s,
        best.least_s,
        num_bytes if is_on_cpu else 0,
        pass_bytes,
    )
    return engine, adapter, loaded


def on_device(engine: Engine) -> int:
    """Return the GPU memory that the worker uses, in bytes; 0 on a CPU."""
    return 0 if engine.device == "cpu" else engine.used_bytes()


@contextmanager
def naming_out_of_memory(engine: Engine, what: str) -> Iterator[None]:
    """Raise LoadError that names `what` if an error in the context, or its cause, is a lack of memory."""
    try:
        yield
    except Exception as exc:
        if engine.is_out_of_memory(exc.__cause__ or exc):
            raise LoadError(f"there is not enough memory for {what}", OUT_OF_MEMORY) from exc
        raise


def sampler_of(spec: ModelSpec, adapter: Adapter) -> Sampler:
    """Return a sampler of sub-batches that are typical of the model."""
    return Sampler(
        adapter.sample or family(spec.family).sample,
        kind_of(spec.inputs),
        frozenset(model_of(spec).outputs),
        spec.max_sequence_length,
        COST_FUNCTIONS[spec.batch_cost],
    )


class Stopwatch:
    """Duration of each phase, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = monotonic()

    def lap(self, name: str) -> None:
        now = monotonic()
        self.laps[name], self._since = now - self._since, now


def hold(path: Path) -> None:
    """Lock the file until this process ends; wait for the process that holds the lock now to end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_EX)


def serve(engine: Engine, adapter: Adapter, lane: WorkersLane, graphs: Graphs, memory: DeviceBytes) -> None:
    """Answer each batch that arrives on `lane` until the lane closes.

    An error of the lane ends this process: a batch or its rows are lost, and the stage would wait for its time limit.
    """
    try:
        while True:
            answer_next(engine, adapter, lane, graphs, memory)
    except (EOFError, ConnectionError):
        return
    except Exception:
        log.exception("a lane failed: the worker ends, and a replacement is started")
        os._exit(1)


def answer_next(engine: Engine, adapter: Adapter, lane: WorkersLane, graphs: Graphs, memory: DeviceBytes) -> None:
    if graphs.are_made or not lane.poll(WorkerLimits.lane_rest_s):
        engine.release_threads()
    try:
        forward = lane.recv()
        engine.use_threads(graphs.left_of(forward.threads))
        answer = compute(engine, adapter, forward.batch, graphs)
        if isinstance(answer, PassResult) and (device_bytes := memory.take_change()):
            answer = replace(answer, device_bytes=device_bytes)
        lane.send(answer)
        return
    except MemoryError:
        log.warning("not enough memory for a batch or its rows")
    # Outside the handler, because the exception references the parts of them that were allocated.
    engine.free_unused_memory()
    lane.send(NO_MEMORY)


def compute(engine: Engine, adapter: Adapter, batch: Batch, graphs: Graphs) -> PassResult | Failed:
    try:
        with graphs.counted_pass(), adapter.encoder.adapted(batch.loras) if batch.loras else nullcontext():
            rows = adapter.forward(batch)
        check_finite(rows, batch)
        return PassResult(with_pooling(rows, batch), graphs.take_change())
    except SIEError as exc:
        return Failed.of(exc)
    except Exception as exc:
        is_short = engine.is_out_of_memory(exc)
        if not is_short:
            log.exception("inference failed")
        end_if_broken(engine, exc)
        if not is_short:
            return Failed(f"inference failed with {type(exc).__name__}; workers.log has the details")
    # Outside the handler, because the exception references tensors of the failed pass.
    engine.free_unused_memory()
    return NO_MEMORY


def end_if_broken(engine: Engine, error: Exception) -> None:
    """End this process if its device fails every later pass: the stage starts a replacement and repeats the pass."""
    if engine.is_broken(error):
        log.error("this worker cannot use its device after that error: the worker ends, and a replacement is started")
        os._exit(1)


def check_finite(rows: Rows, batch: Batch) -> None:
    """Raise ModelError if the model computed NaN or infinity, which quantized vectors would hide.

    Features of `batch` that are passed on were not computed and are not checked: a label without a threshold has NaN.
    """
    for name, values in rows.items():
        if values.dtype.kind == "f" and name not in batch.features and not np.isfinite(values).all():
            raise ModelError(
                f"{name}: the model computed numbers that are not finite; if its compute_precision is float16, "
                "bfloat16 or float32 may help"
            )


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
