"""Handling of signals by commands: while there is nothing to clean up, and while a program runs until one comes."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ended(BaseException):
    """A signal asked this process to end. No handler of every Exception takes it: later signals are ignored."""


@contextmanager
def until_signal(report: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """Context manager that a signal ends: its context cleans up, and further signals do not disturb that.

    `report` gets the name of the signal, inside the signal handler.
    """

    def end(signum: int, frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        report(signal.Signals(signum).name)
        raise Ended

    for signum in ENDING:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup ignores SIGHUP, for example
            signal.signal(signum, end)
    try:
        yield
    except Ended:
        return


def wait_for_signal() -> None:
    """Wait within `until_signal`, for ever."""
    while True:
        signal.pause()
