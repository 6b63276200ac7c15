"""Repeats something on a thread of its own, from the first need of it to the end of the stage."""

from collections.abc import Callable
from threading import Event, Lock, Thread

from sie_triton.scheduling.lasting import lasting


class Sweep:
    """Calls `sweep` every `period_s` seconds once it was started, until it is closed. Any thread may call any method.

    Exceptions of `sweep` are logged, and it is called again.
    """

    def __init__(self, name: str, period_s: float, sweep: Callable[[], None]) -> None:
        self._name, self._period_s, self._sweep = name, period_s, sweep
        self._closed, self._starting = Event(), Lock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start, unless that was done."""
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                self._thread = lasting(self._run, self._name, lambda: None)
                self._thread.start()

    def close(self) -> None:
        with self._starting:
            self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            self._sweep()
