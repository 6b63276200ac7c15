"""The stage's side of a worker: start it, send it messages, notice its death. Imports no torch."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from queue import PriorityQueue
from threading import Lock, Thread
from time import monotonic

from sie_triton.contract import Batch, Rows
from sie_triton.errors import LoadError, ModelError, OutOfMemory
from sie_triton.models.environments.venv import Venv
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.pipeline.worker.messages import (
    OUT_OF_MEMORY,
    AddLora,
    Control,
    Done,
    Failed,
    Forward,
    LaneChannel,
    Load,
    Loaded,
    Order,
    Quickened,
    RemoveLora,
    WriteTokenizer,
)
from sie_triton.system.host.device import worker_variables
from sie_triton.system.processes.child import Child, start
from sie_triton.system.processes.fork_server import fork
from sie_triton.system.processes.pids import ProcessId

TOO_LONG = "loading took longer than {:g} s and was ended; SIE_LOAD_TIMEOUT_S allows more time"


class WorkerDied(ModelError):
    """Raised if the process ended, or was ended, during an order, or during a forward pass, which may be repeated."""


class LoaderStopped(LoadError):
    """Raised if a signal stopped the process while it loaded, and it was ended. A replacement may succeed."""


class WorkerHandle:
    """The stage's handle of a worker process; as many threads as `load` has lanes may call `forward` at once.

    `died(worker)` is called once, on a separate thread, if the process ends before `close`. `quickened` is called by a
    thread in `forward` when some passes have become faster, `measured` when the worker's GPU memory has changed.
    """

    def __init__(
        self,
        load: Load,
        died: Callable[["WorkerHandle"], None],
        *,
        forward_timeout_s: float,
        load_timeout_s: float,
        loading: Callable[[ProcessId], None] = lambda process: None,
        quickened: Callable[[Quickened], None] = lambda quickened: None,
        measured: Callable[[int], None] = lambda device_bytes: None,
        limits: WorkerLimits = WorkerLimits(),
    ) -> None:
        """Start the process and wait until it has loaded; raise LoadError with the reason if it cannot.

        Meanwhile `loading` is called with the process, at its start and every `poll_s`. If it raises, the process
        is ended.
        """
        self.is_alive = True
        self._timeout_s, self._load_timeout_s = forward_timeout_s, load_timeout_s
        self._ordering = Lock()
        self._limits = limits
        self._died, self._quickened, self._measured = died, quickened, measured
        self._closing = False
        self._process, (control, *lanes) = begin(load.fork_server, 1 + load.num_lanes, load.environment, load.device)
        self._control = Control(control)
        self._lanes = [LaneChannel(end) for end in lanes]
        # Use the first idle lane: a single client then always gets the same lane, and only that lane needs more than
        # its share of threads.
        self._idle: PriorityQueue[int] = PriorityQueue()
        for number in range(len(self._lanes)):
            self._idle.put(number)
        try:
            self.loaded = self._load(load, loading)
        except BaseException:
            self.kill()
            self.close()
            raise
        Thread(target=self._watch, name="watch-worker", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def forward(self, batch: Batch, threads: int) -> Rows:
        """Run one pass. Raise WorkerDied; ModelError if the pass fails or exceeds its timeout; MemoryError.

        Raise InputError if a remote endpoint refuses the pass, EndpointAway or EndpointBusy if it cannot run the pass
        now, and LoadError if it does not serve the model to us.
        """
        number = self._idle.get()
        lane = self._lanes[number]
        try:
            lane.send(Forward(batch, threads))
            if not lane.poll(self._timeout_s):
                self.kill()
                lane.close()  # discards a late answer
                raise ModelError(f"inference took longer than {self._timeout_s:g} s and was ended")
            answer = lane.recv()
        except (EOFError, OSError) as exc:
            self.is_alive = False
            raise WorkerDied("the worker process ended") from exc
        finally:
            self._idle.put(number)
        if isinstance(answer, Failed):
            error = answer.error()
            raise MemoryError if isinstance(error, OutOfMemory) else error
        if answer.quickened:
            self._quickened(answer.quickened)
        if answer.device_bytes:
            self._measured(answer.device_bytes)
        return answer.rows

    def add_lora(self, name: str, directory: Path) -> Done:
        """Load a LoRA adapter, while forward passes continue; any thread may call this.

        Raise LoadError with the reason if it cannot be loaded; WorkerDied.
        """
        return self._order(AddLora(name, directory))

    def remove_lora(self, name: str) -> Done:
        """Free a LoRA adapter that no forward pass uses; raise as `add_lora` does."""
        return self._order(RemoveLora(name))

    def kill(self) -> None:
        self.is_alive = False
        self._process.kill()

    def close(self) -> None:
        """End the process. No thread may be in `forward`."""
        self._closing = True
        self.is_alive = False
        self._control.close()
        for lane in self._lanes:
            lane.close()
        self._process.end(self._limits.end_s)

    def _order(self, order: Order) -> Done:
        with self._ordering:
            try:
                self._control.send(order)
                if not self._control.poll(self._load_timeout_s):
                    self.kill()
                    self._control.close()  # discards a late answer
                    raise LoadError(TOO_LONG.format(self._load_timeout_s))
                answer = self._control.recv()
            except (EOFError, OSError) as exc:
                self.is_alive = False
                raise WorkerDied("the worker process ended") from exc
        if isinstance(answer, Failed):
            raise answer.error()
        assert isinstance(answer, Done)
        return answer

    def _load(self, load: Load, loading: Callable[[ProcessId], None]) -> Loaded:
        try:
            self._control.send(load)
            self._watch_loading(loading)
            answer = self._control.recv()
        except (EOFError, OSError) as exc:
            raise self._unloaded(load) from exc
        if isinstance(answer, Failed):
            error = answer.error()
            if load.environment and isinstance(error, LoadError) and error.reason == "dependency":
                raise load.environment.broken(answer.message, "PACKAGE...")
            raise error
        assert isinstance(answer, Loaded)
        return answer

    def _unloaded(self, load: Load) -> LoadError:
        """Return why the process ended without an answer."""
        self._process.wait()
        message = f"the process that loads the weights ended {self._process.describe_exit}"
        # It ended by itself: its Python could not run a worker, and the log has the reason.
        if load.environment and (self._process.status or 0) > 0:
            return load.environment.broken(f"{message}; tritonserver.log has the details")
        return LoadError(message, OUT_OF_MEMORY if self._process.was_killed else "failed")

    def _watch_loading(self, loading: Callable[[ProcessId], None]) -> None:
        """Wait until the process answers or ends."""
        timeout_s = self._load_timeout_s
        stopped, ended = StoppedTwice(self._process), monotonic() + timeout_s
        while True:
            loading(self._process.id)
            if self._control.poll(min(self._limits.poll_s, timeout_s)):
                return
            if stopped.look():
                raise LoaderStopped("the process that loads the weights was stopped by a signal, and has been ended")
            if monotonic() > ended:
                raise LoadError(TOO_LONG.format(timeout_s))

    def _watch(self) -> None:
        stopped = StoppedTwice(self._process)
        while not self._process.wait(self._limits.poll_s):
            if stopped.look():
                self.kill()
        self.is_alive = False
        if not self._closing:
            self._died(self)


def write_tokenizer(order: WriteTokenizer, fork_server: Path, waiting: Callable[[], object]) -> None:
    """Have a process write a tokenizer; meanwhile `waiting` is called every `poll_s`, and may raise to stop.

    Raise LoadError with the reason if the process cannot.
    """
    process, (end,) = begin(fork_server, 1)
    control, ended = Control(end), monotonic() + WorkerLimits.tokenizer_s
    try:
        control.send(order)
        while not control.poll(WorkerLimits.poll_s):
            waiting()
            if monotonic() > ended:
                raise LoadError(f"making the tokenizer took longer than {WorkerLimits.tokenizer_s:g} s and was ended")
        answer = control.recv()
    except (EOFError, OSError) as exc:
        process.wait()
        reason = "failed" if process.was_killed else "corrupt"  # a fault, or one of the process's limits
        raise LoadError(f"the process that makes the tokenizer ended {process.describe_exit}", reason) from exc
    finally:
        control.close()
        process.end(0)
    if isinstance(answer, Failed):
        raise answer.error()


def begin(
    fork_server: Path | None, num_sockets: int, environment: Venv | None = None, device: str = "cpu"
) -> tuple[Child, list[socket.socket]]:
    """Fork a process by the fork server in `fork_server`, or start one if none answers; return it and our socket ends.

    Raise LoadError if the interpreter of `environment` cannot be started.
    """
    ours, theirs = _pairs(num_sockets)
    child: Child | None = fork(fork_server, _descriptors(theirs)) if fork_server is not None else None
    if child is None:
        # If the fork server responds late, it and the process that it forks find their ends closed.
        _close([*ours, *theirs])
        ours, theirs = _pairs(num_sockets)
        try:
            child = _start(_descriptors(theirs), environment, device)
        except OSError as exc:
            _close([*ours, *theirs])
            if environment is None:
                raise
            raise environment.broken(f"its Python cannot be run ({exc})") from exc
    _close(theirs)
    return child, ours


def _start(descriptors: list[int], environment: Venv | None, device: str) -> Child:
    # The stage's own interpreter is embedded in Triton's stub: sys.executable is the python3 it found.
    python = environment.command if environment else (sys.executable,)
    command = [*python, "-m", "sie_triton.pipeline.worker", *map(str, descriptors)]
    variables = environment.variables() if environment else os.environ
    return start(command, environment={**variables, **worker_variables(device)}, descriptors=descriptors, leads=False)


def _pairs(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _descriptors(ends: list[socket.socket]) -> list[int]:
    return [end.fileno() for end in ends]


def _close(ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()


class StoppedTwice:
    """Detector of a process that is stopped at two consecutive polls; a single stop may be a debugger's."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self._looks = 0

    def look(self) -> bool:
        self._looks = self._looks + 1 if self._process.is_stopped else 0
        return self._looks == 2
