"""Readers with faults of each kind, which the harness must find: the fault is in bytes that contain 0xFF."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz.target import Target

CASES = st.binary(max_size=20)
MARK = b"\xff"


class Refused(Exception):
    """Blames the input."""


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


raises = target(fail)
crashes = target(lambda: ctypes.string_at(0))
hangs = target(lambda: time.sleep(60))
