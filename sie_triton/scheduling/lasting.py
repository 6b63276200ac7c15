"""Threads that outlive whatever one request does to them."""

import logging
from collections.abc import Callable
from threading import Thread
from time import sleep

# A fault that comes at once again must not take the whole processor.
PAUSE_S = 0.1

log = logging.getLogger(__name__)


def lasting(run: Callable[[], None], name: str, failed: Callable[[], None]) -> Thread:
    """A daemon thread, not started, that calls `run` until it returns. After each exception `failed` is told.

    Whatever it raises: a panic in the tokenizer's library is no Exception.
    """

    def keep_running() -> None:
        while True:
            try:
                run()
            except BaseException:
                log.exception("the thread %s failed and goes on", name)
                failed()
                sleep(PAUSE_S)
            else:
                return

    return Thread(target=keep_running, name=name, daemon=True)
