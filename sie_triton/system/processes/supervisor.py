"""Restarts a program whenever it dies, or its heartbeats stop, until it is closed.

A child writes a byte to a pipe from the loop that does its work. The parent polls the pipe and counts the polls that
found no byte, not the time: a parent that was suspended or starved too has not polled, and therefore kills no child.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Protocol

from sie_triton.errors import ServerError
from sie_triton.system.processes.child import Started, end_with_parent, start
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log

VARIABLE = "SIE_PULSE_DESCRIPTOR"


def beat() -> None:
    """Send a heartbeat to the parent, if it watches for them: once a second."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):  # the pipe is full, or the parent has ended
            os.write(int(descriptor), b".")


class Pulse:
    """Parent's end of the pipe for one child. The child inherits `descriptor` and `environment`."""

    def __init__(self, limits: ProcessLimits = ProcessLimits()) -> None:
        self._reader, self.descriptor = os.pipe()
        for end in (self._reader, self.descriptor):
            os.set_blocking(end, False)
        self._limits, self._num_left = limits, limits.max_silent_polls_at_start

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.descriptor)}

    def is_lost(self) -> bool:
        """Poll once; True after `max_silent_polls` in a row without a heartbeat."""
        with suppress(BlockingIOError):
            if os.read(self._reader, 64 * 1024):
                self._num_left = self._limits.max_silent_polls
                return False
        self._num_left -= 1
        return self._num_left <= 0

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)


class Program(Protocol):
    """A program that a supervisor keeps running."""

    name: str
    log: Log

    def start(self) -> None:
        """Start the program, or restart it after it has ended."""

    def wait_ready(self) -> None:
        """Wait until the program is ready. Raise ServerError if it ends first or takes too long."""

    def wait(self) -> str | None:
        """Wait until the program ends. Return how, in words; None if it was not a crash."""

    def stop(self) -> None:
        """End the program."""


class Supervisor:
    """Keeps one program running, and reports events to `say`, line by line. `max_starts` 0: without limit."""

    def __init__(
        self,
        program: Program,
        say: Callable[[str], None],
        max_starts: int = 5,
        limits: ProcessLimits = ProcessLimits(),
    ) -> None:
        self._program, self._limits = program, limits
        self._say = say
        self._max_starts = max_starts
        self._closing = Event()
        self._starting = Lock()

    def keep_running(self) -> None:
        """Restart the program until it ends without a crash, or until `close`. Raise ServerError if restarts fail."""
        deaths, ready_since = 0, monotonic()
        while (how := self._program.wait()) and not self._closing.is_set():
            died = monotonic()
            lived_s = died - ready_since
            deaths = 1 if lived_s >= self._limits.steady_s else deaths + 1
            self._say(f"{self._program.name} ended {how}, after {lived_s:.0f} s; restarting")
            if not self._bring_back(pauses(deaths - 1, self._limits.pauses_s)):
                return
            ready_since = monotonic()
            log = self._program.log.path.resolve()
            self._say(f"{self._program.name} was restarted in {ready_since - died:.1f} s; the log says more: {log}")

    def close(self) -> None:
        """End the program, and do not restart it."""
        self._closing.set()
        with self._starting:
            self._program.stop()

    def _bring_back(self, waits: Iterator[float]) -> bool:
        """Start the program until it is ready; False after `close`."""
        num_failed = 0
        while True:
            self._closing.wait(next(waits))
            try:
                with self._starting:
                    if self._closing.is_set():
                        return False
                    self._program.start()
                self._program.wait_ready()
            except (OSError, ServerError) as exc:
                num_failed += 1
                self._report(num_failed, exc)
            else:
                return True

    def _report(self, num_failed: int, error: Exception) -> None:
        """Report a failed start, without limit the first, second, fourth, eighth … one; raise it after the last."""
        name, most = self._program.name, self._max_starts
        if most:
            self._say(f"start {num_failed} of {most} failed")
        elif num_failed.bit_count() == 1:
            self._say(f"start {num_failed} of {name} failed: {error}")
        if num_failed == most:
            raise ServerError(f"{name} was started {most} times and did not become ready; the last error:\n{error}")


class Companion:
    """Keeps `python -m MODULE ARGUMENTS` running; it imports nothing from the current directory of this process.

    `program` replaces `python -m`; `cwd` is its working directory. After SIGTERM it has `end_s` seconds to end.

    A program that `beats` calls `pulse.beat` once a second; it is killed and restarted when the heartbeats stop.
    `trouble` is called as often, and returns why a program has to be restarted, or an empty text.

    Use as a context manager: the program runs within the context, and all that it has forked ends with it. It counts as
    ready as soon as it has started, so restarts fail only while the system cannot start it; they are tried without end.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Log,
        environment: Mapping[str, str],
        say: Callable[[str], None] = lambda line: None,
        *,
        program: Sequence[str] = (sys.executable, "-P", "-m"),
        cwd: Path | None = None,
        end_s: float = 2.0,
        beats: bool = False,
        trouble: Callable[[], str] | None = None,
        limits: ProcessLimits = ProcessLimits(),
    ) -> None:
        self.name, self._limits = name, limits
        self.log = log
        self.environment = environment
        self._command, self._cwd = [*program, *command], cwd
        self._end_s = end_s
        self._beats, self._trouble = beats, trouble
        self._pulse: Pulse | None = None
        self._child: Started | None = None
        self._say = say
        self._supervisor = Supervisor(self, say, max_starts=0, limits=limits)
        self._thread = Thread(target=self._supervisor.keep_running, name=name, daemon=True)

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
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        if self._child is not None:
            self._child.reap()
            self._close_pulse()
        self._pulse = Pulse(self._limits) if self._beats else None
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
        while not self._child.wait(self._limits.beat_s if self._pulse or self._trouble else None):
            if self._pulse and self._pulse.is_lost():
                self._child.kill()
                self._child.wait()
                silent_s = self._limits.max_silent_polls * self._limits.beat_s
                return f"by the launcher (no sign of life for {silent_s:.0f} s)"
            if self._trouble and (trouble := self._trouble()):
                self.stop()
                return f"by the launcher ({trouble})"
        return self._child.describe_exit

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


def pauses(num_deaths: int, pauses_s: Sequence[float]) -> Iterator[float]:
    """Yield the seconds to wait before each start of a program that has died `num_deaths` times in a row.

    >>> [s for s, _ in zip(pauses(0, (1.0, 2.0, 4.0)), range(5))]
    [0.0, 1.0, 2.0, 4.0, 4.0]
    >>> next(pauses(7, (1.0, 2.0, 4.0)))
    4.0
    """
    waits = (0.0, *pauses_s)
    while True:
        yield waits[min(num_deaths, len(waits) - 1)]
        num_deaths += 1
