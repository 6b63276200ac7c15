"""Starts a program again whenever it dies, until it is to end."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Protocol

from sie_triton.errors import ServerError
from sie_triton.processes.child import Started, end_with_parent, start
from sie_triton.processes.log import Log
from sie_triton.processes.pulse import LOOK_S, MAX_SILENT, Pulse

# One that lived so long is started again at once.
STEADY_S = 5.0

# Between a start and the next, when it dies again and again.
PAUSES_S = (1.0, 2.0, 4.0)

# So often it may be started without becoming ready.
MAX_STARTS = 5

# So long a companion may take to end by itself.
END_S = 2.0

NO_SIGN = f"by the launcher (no sign of life for {MAX_SILENT * LOOK_S:.0f} s)"

PYTHON_MODULE = (sys.executable, "-P", "-m")


class Program(Protocol):
    """What is kept running."""

    name: str

    @property
    def log_path(self) -> Path: ...

    def start(self) -> None:
        """In the place of one that ended, where there was one."""

    def wait_ready(self) -> None:
        """ServerError if it ends before it is, or takes too long."""

    def wait(self) -> str | None:
        """Block until it ends: how, in words; None where that is no death."""

    def stop(self) -> None:
        """End it."""


class Supervisor:
    """Of one program, which `say` is told about line by line."""

    def __init__(self, program: Program, say: Callable[[str], None]) -> None:
        self._program = program
        self._say = say
        self._closing = Event()
        self._starting = Lock()

    def keep_running(self) -> None:
        """Return when it ends without having died, or after `close`; ServerError where it cannot be brought back."""
        deaths, ready_since = 0, monotonic()
        while (how := self._program.wait()) and not self._closing.is_set():
            died = monotonic()
            lived_s = died - ready_since
            deaths = 1 if lived_s >= STEADY_S else deaths + 1
            self._say(f"{self._program.name} ended {how}, after {lived_s:.0f} s; restarting")
            if not self._bring_back(pauses(deaths - 1)):
                return
            ready_since = monotonic()
            log = self._program.log_path.resolve()
            self._say(f"{self._program.name} is back after {ready_since - died:.1f} s; the log says more: {log}")

    def close(self) -> None:
        """End the program, and start it no more."""
        self._closing.set()
        with self._starting:
            self._program.stop()

    def _bring_back(self, waits: Iterator[float]) -> bool:
        """False after `close`."""
        for number in range(1, MAX_STARTS + 1):
            self._closing.wait(next(waits))
            try:
                with self._starting:
                    if self._closing.is_set():
                        return False
                    self._program.start()
                self._program.wait_ready()
            except (OSError, ServerError) as exc:
                failure = exc
                self._say(f"start {number} of {MAX_STARTS} failed")
            else:
                return True
        name = self._program.name
        raise ServerError(f"{name} was started {MAX_STARTS} times and never ready; the last time:\n{failure}")


class Companion:
    """`python -m MODULE ARGUMENTS`, which imports nothing from the directory that this process was started in.

    Or `program` in Python's place, in the directory `cwd`. Told to end, it has `end_s`.

    A program that `beats` calls `pulse.beat` once a second; it is killed and restarted when the heartbeats stop.

    Use as a context manager: it is kept running inside, and at the end all that it forked ends too. It counts as ready
    as soon as it is there, so that it is given up only where the system cannot start it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Log,
        environment: Mapping[str, str],
        say: Callable[[str], None] = lambda line: None,
        *,
        program: Sequence[str] = PYTHON_MODULE,
        cwd: Path | None = None,
        end_s: float = END_S,
        beats: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self.environment = environment
        self._command, self._cwd = [*program, *command], cwd
        self._end_s = end_s
        self._beats = beats
        self._pulse: Pulse | None = None
        self._child: Started | None = None
        self._say = say
        self._supervisor = Supervisor(self, say)
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> "Companion":
        with ExitStack() as stack:
            stack.enter_context(self.log)
            stack.callback(self._close_pulse)
            self.start()
            self._thread.start()
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def log_path(self) -> Path:
        return self.log.path

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        if self._child is not None:
            self._child.reap()
            self._close_pulse()
        self._pulse = Pulse() if self._beats else None
        self._child = start(
            self._command,
            environment={**os.environ, **self.environment, **(self._pulse.environment if self._pulse else {})},
            log=self.log,
            cwd=self._cwd,
            descriptors=[self._pulse.descriptor] if self._pulse else [],
            before=end_with_parent,
        )

    def wait_ready(self) -> None:
        pass

    def wait(self) -> str | None:
        assert self._child is not None
        while not self._child.wait(LOOK_S if self._pulse else None):
            if self._pulse and self._pulse.is_lost():
                self._child.kill()
                self._child.wait()
                return NO_SIGN
        return self._child.how_it_ended

    def stop(self) -> None:
        assert self._child is not None
        self._child.send(signal.SIGTERM)
        self._child.end(self._end_s)

    def _end(self) -> None:
        self._supervisor.close()
        self._thread.join()

    def _close_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None

    def _run(self) -> None:
        try:
            self._supervisor.keep_running()
        except ServerError as exc:
            self._say(f"error: {exc}")


def pauses(num_deaths: int) -> Iterator[float]:
    """Seconds before each start of one that has died so often at once.

    >>> [s for s, _ in zip(pauses(0), range(5))]
    [0.0, 1.0, 2.0, 4.0, 4.0]
    >>> next(pauses(7))
    4.0
    """
    waits = (0.0, *PAUSES_S)
    while True:
        yield waits[min(num_deaths, len(waits) - 1)]
        num_deaths += 1
