"""Readers with faults of each kind, which the harness must find: the fault is in bytes that contain 0xFF."""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.target import Target

log = logging.getLogger(__name__)

CASES = st.binary(max_size=20)
MARK = b"\xff"


class Refused(Exception):
    """Blames the input."""


class Panic(BaseException):
    """Stands for the panic of a native library."""


def target(act: Callable[[], object]) -> Callable[[Path], Iterator[Target]]:
    """Return a reader that refuses empty input, and calls `act` for input with a MARK."""

    def run(data: bytes) -> None:
        if not data:
            raise Refused
        if MARK in data:
            act()

    @contextmanager
    def prepare(directory: Path) -> Iterator[Target]:
        yield Target(CASES, run, (Refused,), memory_bytes=500_000_000)

    return prepare  # type: ignore[return-value]


def fail() -> None:
    raise KeyError("x")


def panic() -> None:
    raise Panic("at the disco")


def log_it() -> None:
    try:
        fail()
    except KeyError:
        log.exception("a request failed")


def starts_another() -> None:
    """Leave a process behind that writes its pid, and hang."""
    if not (pid := os.fork()):
        time.sleep(60)
        os._exit(0)
    Path("other").write_text(str(pid))
    time.sleep(60)


good = target(lambda: None)
refuses = target(lambda: (_ for _ in ()).throw(Refused))
raises = target(fail)
panics = target(panic)
logs = target(log_it)
crashes = target(lambda: ctypes.string_at(0))
is_killed = target(lambda: os.kill(os.getpid(), signal.SIGKILL))
exits = target(lambda: os._exit(3))
hangs = target(lambda: time.sleep(60))
hangs_with_another = target(starts_another)
takes_memory = target(lambda: bytearray(1 << 31))
opens_files = target(lambda: KEPT.append(os.open(os.devnull, os.O_RDONLY)))

KEPT: list[int] = []
