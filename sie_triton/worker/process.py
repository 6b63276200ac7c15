"""The stage's side: start a worker, ask it, notice when it is gone. Imports no torch."""

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from threading import Thread
from time import monotonic
from typing import Any

from sie_triton.errors import LoadError, ModelError, SIEError
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.measurements import Measurements
from sie_triton.processes.child import Child, start
from sie_triton.processes.nursery import fork
from sie_triton.processes.pids import ProcessId
from sie_triton.spec import ModelSpec

RESIDENT_BYTES = "resident_bytes"

# A worker with PyTorch and no weights, measured. Loading has each weight twice at most.
INTERPRETER_BYTES = 200_000_000

# How often a worker that does not answer is looked at; stopped on two looks, it is replaced.
LOOK_S = 0.5

# So long a worker may take to end by itself.
END_S = 2.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to load, where and how.

    `spec` is a ModelSpec as JSON, `cache` where measurements are kept, `threads` those of one lane. The worker
    holds the file `lock` while weights are in memory, so that there are never two copies.
    """

    spec: str
    directory: Path
    device: str
    cache: Path
    lock: Path
    num_lanes: int
    threads: int

    def measurements(self) -> Measurements:
        """What is known of this model, run this way, on this machine."""
        spec = ModelSpec.from_json(self.spec)
        runtime = spec.runtime
        settings = [self.device, runtime.precision, runtime.attention, str(spec.max_sequence_length), spec.batch_cost]
        return Measurements.of(self.cache, spec.model, self.directory, settings, redo=runtime.recalibrate)


def expected_bytes(order: Order) -> int:
    """How much memory the worker will take: as measured the last time, else judged by the size of the files."""
    measured = order.measurements().get(RESIDENT_BYTES)
    files = sum(path.stat().st_size for path in order.directory.rglob("*.safetensors") if path.is_file())
    return int(measured) if measured else INTERPRETER_BYTES + 2 * files


@dataclass(frozen=True, slots=True)
class Loaded:
    """`sub_batch_cost` is 0 where it was not calibrated, `device_bytes` on a CPU; `seconds` says what took them."""

    vocab_size: int
    weights_bytes: int
    sub_batch_cost: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    device_bytes: int = 0


class WorkerDied(ModelError):
    """The process ended, or was ended, in the middle of a forward pass that may be repeated."""


class LoaderStopped(LoadError):
    """The process was stopped from outside while it loaded, and ended. Another one may do better."""


class Worker:
    """One process. `forward` may be called by as many threads at once as `order` has lanes.

    `died(worker)` is called once, on a thread of its own, if the process ends before `close`.
    """

    def __init__(
        self,
        order: Order,
        died: Callable[["Worker"], None],
        *,
        forward_timeout_s: float,
        load_timeout_s: float,
        loading: Callable[[ProcessId], None] = lambda process: None,
    ) -> None:
        """Start the process and wait until it has loaded; LoadError says why it could not.

        Until then `loading` is called with it, from its birth on and every LOOK_S; what that raises ends it.
        """
        self.is_alive = True
        self._timeout_s = forward_timeout_s
        self._died = died
        self._closing = False
        self._process, self._connections = begin(order.lock.parent, 1 + order.num_lanes)
        self._control, *lanes = self._connections
        # Last in, first out: a client alone always has the same lane, whose thread has its buffers in the cache.
        self._idle: LifoQueue[Connection[Any, Any]] = LifoQueue()
        for connection in lanes:
            self._idle.put(connection)
        try:
            self.loaded = self._load(order, load_timeout_s, loading)
        except BaseException:
            self.kill()
            self.close()
            raise
        Thread(target=self._watch, name="watch-worker", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def forward(self, batch: PackedBatch, threads: int) -> Rows:
        """Raises WorkerDied; ModelError for a failed pass or one over the time limit; MemoryError."""
        connection = self._idle.get()
        try:
            connection.send((batch, threads))
            if not connection.poll(self._timeout_s):
                self.kill()
                raise ModelError(f"inference took longer than {self._timeout_s:g} s and was ended")
            answer = connection.recv()
        except (EOFError, OSError) as exc:
            self.is_alive = False
            raise WorkerDied("the process that computes ended") from exc
        finally:
            self._idle.put(connection)
        if isinstance(answer, Exception):
            raise answer
        rows: Rows = answer
        return rows

    def kill(self) -> None:
        self.is_alive = False
        self._process.kill()

    def close(self) -> None:
        """End the process. Nobody may be in `forward`."""
        self._closing = True
        self.is_alive = False
        for connection in self._connections:
            connection.close()
        self._process.end(END_S)

    def _load(self, order: Order, timeout_s: float, loading: Callable[[ProcessId], None]) -> Loaded:
        try:
            self._control.send(order)
            self._watch_loading(timeout_s, loading)
            answer = self._control.recv()
        except (EOFError, OSError) as exc:
            self._process.wait()
            message = f"the process that loads the weights ended {self._process.how_it_ended}"
            raise LoadError(message, "out of memory" if self._process.was_killed else "failed") from exc
        if isinstance(answer, SIEError):
            raise answer
        loaded: Loaded = answer
        return loaded

    def _watch_loading(self, timeout_s: float, loading: Callable[[ProcessId], None]) -> None:
        """Until the process has an answer, or has ended."""
        stopped, ended = StoppedTwice(self._process), monotonic() + timeout_s
        while True:
            loading(self._process.id)
            if self._control.poll(min(LOOK_S, timeout_s)):
                return
            if stopped.look():
                raise LoaderStopped("the process that loads the weights was stopped by a signal, and has been ended")
            if monotonic() > ended:
                raise LoadError(
                    f"loading took longer than {timeout_s:g} s and was ended; SIE_LOAD_TIMEOUT_S allows it more time"
                )

    def _watch(self) -> None:
        stopped = StoppedTwice(self._process)
        while not self._process.wait(LOOK_S):
            if stopped.look():
                self.kill()
        self.is_alive = False
        if not self._closing:
            self._died(self)


def begin(directory: Path, num_connections: int) -> "tuple[Child, list[Connection[Any, Any]]]":
    """A process and the connections it serves: forked by the nursery in `directory`, or started where none answers."""
    ours, theirs = _pairs(num_connections)
    child: Child | None = fork(directory, _descriptors(theirs))
    if child is None:
        # A nursery that comes round later finds the ends it was given closed, and so does what it forks for them.
        _close([*ours, *theirs])
        ours, theirs = _pairs(num_connections)
        # The stage's own interpreter is embedded in Triton's stub: sys.executable is the python3 it found.
        command = [sys.executable, "-m", "sie_triton.worker", *map(str, _descriptors(theirs))]
        child = start(command, descriptors=_descriptors(theirs))
    _close(theirs)
    return child, [Connection(end.detach()) for end in ours]


def _pairs(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _descriptors(ends: list[socket.socket]) -> list[int]:
    return [end.fileno() for end in ends]


def _close(ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()


class StoppedTwice:
    """A process that was stopped at two looks one after the other stays so: one look may be a debugger's."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self._looks = 0

    def look(self) -> bool:
        self._looks = self._looks + 1 if self._process.is_stopped else 0
        return self._looks == 2
