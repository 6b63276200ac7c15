"""Periodic task on a thread of its own, from its first use to the end of the stage."""

from collections.abc import Callable
from threading import Event, Lock, Thread

from sie_triton.pipeline.scheduling.threads import started


class Sweep:
    """Calls `sweep` every `period_s` seconds from `start` to `close`. Any thread may call any method.

    Exceptions of `sweep` are logged; the calls continue.
    """

    def __init__(self, name: str, period_s: float, sweep: Callable[[], None]) -> None:
        self._name, self._period_s, self._sweep = name, period_s, sweep
        self._closed, self._starting = Event(), Lock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs already. Raise BusyError if the system starts none now."""
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                self._thread = started(self._run, self._name, lambda: None)

    def close(self) -> None:
        with self._starting:
            self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            self._sweep()
