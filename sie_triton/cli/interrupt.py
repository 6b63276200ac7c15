"""Handling of Ctrl-C while a command has nothing to clean up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_silently() -> Iterator[None]:
    """Context manager in which Ctrl-C ends the process at once, without a traceback of an import in progress."""
    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)
