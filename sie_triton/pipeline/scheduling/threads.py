"""Threads that survive any exception."""

import logging
from collections.abc import Callable
from threading import Thread
from time import sleep

from sie_triton.errors import BusyError

# Back off, in seconds, so that a repeated fault does not spin.
PAUSE_S = 0.1

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
                sleep(PAUSE_S)
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
