"""Threads that survive any exception, and periodic tasks on them."""

import logging
from collections.abc import Callable
from threading import Event, Lock, Thread
from time import sleep

from sie_triton.errors import BusyError

log = logging.getLogger(__name__)


def lasting(run: Callable[[], None], name: str, failed: Callable[[], None]) -> Thread:
    """Make a daemon thread, not yet started, that calls `run` until it returns. After an exception it calls `failed`.

    It catches BaseException: a panic of the tokenizer library is not an Exception.
    """

    def keep_running() -> None:
        while True:
            try:
                run()
            except BaseException:
                log.exception("thread %s failed and continues", name)
                failed()
                sleep(0.1)  # so that a repeated fault does not spin
            else:
                return

    return Thread(target=keep_running, name=name, daemon=True)


def started(run: Callable[[], None], name: str, failed: Callable[[], None]) -> Thread:
    """Start a thread as `lasting` makes it. Raise BusyError if the system starts none now."""
    thread = lasting(run, name, failed)
    try:
        thread.start()
    except RuntimeError as exc:
        raise BusyError("no thread can be started on the server now; retry") from exc
    return thread


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
