"""Graphs of a model's encoders, in which small sub-batches are faster: made and adopted in the background.

No request waits for them. If graphs are files, a separate process writes them after the first answers, into a directory
that is kept. Each graph is opened, compared with the current encoder, and timed against it; the result is kept, too.
"""

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import _exit as end_process
from pathlib import Path
from threading import Event, Thread

from sie_triton.engines import Engine
from sie_triton.engines.base import Unusable
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.pipeline.worker.expected import RESIDENT_BYTES
from sie_triton.pipeline.worker.messages import Load, Quickened
from sie_triton.system.host.container import container_memory
from sie_triton.system.host.core_time import seconds_on_core
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.child import end_with_parent, start

log = logging.getLogger(__name__)

ORDER, GRAPH, LOG = "order.json", "graph.onnx", "export.log"

# Prefix of the name of a directory that is being filled.
MAKING = "making-"

# Free memory that an export needs per byte of the weights, in addition to that of an interpreter with PyTorch.
BYTES_PER_BYTE, INTERPRETER_BYTES = 4, 1_000_000_000

# Free disk space that an export needs per byte of the weights.
DISK_BYTES_PER_BYTE = 1.25


class Graphs:
    """The graphs of the model that `engine` has loaded by `order`.

    `are_made` is True while they are being made; any thread may read it.
    """

    def __init__(self, engine: Engine, order: Load, limits: WorkerLimits = WorkerLimits()) -> None:
        self._engine, self._order, self._limits = engine, order, limits
        self._num_started, self._num_ended = 0, 0
        self._wanted, self._reached = 0, Event()
        self._change: Quickened | None = None
        self.are_made = False

    def start(self) -> None:
        """Make or load graphs on a separate thread, if the order requests it."""
        if self._order.makes_graphs:
            Thread(target=self._run, name="graphs", daemon=True).start()

    @contextmanager
    def counted_pass(self) -> Iterator[None]:
        """Count a pass of a lane; wraps each pass."""
        self._num_started += 1
        try:
            yield
        finally:
            self._num_ended += 1
            if self._num_ended >= self._wanted and not self._reached.is_set():
                self._reached.set()

    def passes(self) -> tuple[int, int]:
        """Return the numbers of started and of ended passes."""
        return self._num_started, self._num_ended

    def left_of(self, threads: int) -> int:
        """Return the threads for a pass that may use `threads`: one fewer than all while graphs are made."""
        is_all = threads >= self._order.threads * self._order.num_lanes
        return max(1, threads - 1) if self.are_made and is_all else threads

    def take_change(self) -> Quickened | None:
        """Return the change since the last call, or None."""
        if self._change is None:
            return None
        change, self._change = self._change, None
        return change

    def undisturbed(self, work: Callable[[], object]) -> float:
        """Return the seconds of `work` while no lane runs a pass; on a busy device, those of the last try."""
        took = 0.0
        for _ in range(self._limits.num_trials):
            # Threads of a finished pass spin on their cores for a while, in case another pass follows.
            time.sleep(max(self._limits.trial_rest_s, took))
            num_started, is_idle = self._num_started, self._num_started == self._num_ended
            took = seconds_on_core(work)
            self._engine.release_threads()
            if is_idle and num_started == self._num_started:
                break
        return took

    def _run(self) -> None:
        has_failed = True
        try:
            self._serve()
            has_failed = False
        except Unusable:
            log.exception("making a graph broke this worker: the worker ends, and a replacement is started")
            end_process(1)
        except Exception:
            log.exception("this model has no graph for now")
        finally:
            self.are_made = False
            self._engine.release_threads()
        if has_failed:  # outside the handler, because its exception references tensors
            self._engine.free_unused_memory()

    def _serve(self) -> None:
        directory, encoders = self._order.graphs, self._engine.may_have_graphs()
        num_bytes = sum(each.weights_bytes for each in encoders.values()) if self._engine.graphs_are_files else 0
        if not encoders or num_bytes > self._limits.graph_weights_bytes:
            return
        are_here = directory.exists() or not self._engine.graphs_are_files
        self._wanted = 1 if are_here else self._limits.num_passes_before_export
        self._reached.wait()
        self.are_made, started = True, time.monotonic_ns()
        if not are_here and not self._export(directory, num_bytes):
            return
        before, threads = self._used_bytes(), self._order.threads * self._order.num_lanes
        max_tokens = [
            self._engine.take_graph(part, path_of(directory, part), threads, self.undisturbed) for part in encoders
        ]
        if any(max_tokens):
            now = self._used_bytes()
            self._engine.measurements.put(**{RESIDENT_BYTES: now})
            self._change = Quickened(max(max_tokens), max(0, now - before), started, time.monotonic_ns())

    def _used_bytes(self) -> int:
        if self._engine.graphs_are_files:
            self._engine.free_unused_memory()  # of passes
        return self._engine.used_bytes()

    def _export(self, directory: Path, num_bytes: int) -> bool:
        """Write the graphs; True on success. Record a failure, unless memory or disk space may suffice later."""
        needed = INTERPRETER_BYTES + BYTES_PER_BYTE * num_bytes
        if available_bytes() < needed:
            log.info("too little memory to make a graph of this model: %d bytes are needed", needed)
            return False
        forget_others(private_directory(directory.parent), directory.name)
        if is_disk_short(directory.parent, num_bytes):
            log.info("too little space in %s to make a graph of this model", directory.parent)
            return False
        part = directory.with_name(f"{MAKING}{directory.name}")
        part.mkdir()
        (part / ORDER).write_text(json.dumps({"spec": self._order.spec, "directory": str(self._order.directory)}))
        command = [sys.executable, "-m", "sie_triton.pipeline.worker.export", str(part)]
        child = start(command, log=part / LOG, before=end_with_parent, leads=False)
        try:
            child.wait(900.0)
        finally:
            child.end()
        if child.status == 0:
            part.rename(directory)
            return True
        reason = last_line(part / LOG) or child.describe_exit
        log.info("this model has no graph: %s", reason)
        if not child.was_killed and not is_disk_short(part, num_bytes):
            self._engine.refuse_graphs(reason)
        shutil.rmtree(part)
        return False


def path_of(directory: Path, part: str) -> Path:
    """Return the path of the graph of encoder `part`, "" for the only encoder of a model."""
    return directory / (part or "encoder") / GRAPH


def forget_others(directory: Path, name: str) -> None:
    """Delete graphs of the same model for other weights, settings or versions. Directories are named MODEL-KEY."""
    model = name.rpartition("-")[0]
    for other in directory.iterdir():
        if other.name.removeprefix(MAKING).rpartition("-")[0] == model:
            shutil.rmtree(other, ignore_errors=True)


def available_bytes() -> int:
    """Return the available memory of this machine, or of this container if that is less."""
    import psutil

    available, container = int(psutil.virtual_memory().available), container_memory()
    return available if container is None else min(available, container[1] - container[0])


def is_disk_short(directory: Path, num_bytes: int) -> bool:
    """True if the disk has too little space for a graph of `num_bytes` of weights."""
    return shutil.disk_usage(directory).free < DISK_BYTES_PER_BYTE * num_bytes


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
