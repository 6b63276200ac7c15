"""Byte ranges of a file that threads of any process lock; the kernel unlocks those of a process that ends."""

import fcntl
import os
from collections import deque
from pathlib import Path
from struct import Struct
from time import sleep
from typing import Self

# struct flock of 64-bit Linux: type, whence, start, length, pid.
FLOCK = Struct("hhqqi4x")


class LockFile:
    """Locks on ranges of the file `path`, which is created if missing. The file stays empty: bytes need not exist.

    Any thread may call the methods. Each lock has an open file description of its own, so threads of one process
    exclude each other as processes do. A lock ends when its holder releases it, or when the holder's process ends, even
    by SIGKILL. The methods raise OSError if the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._free: deque[int] = deque()

    @classmethod
    def private(cls) -> Self:
        """Return locks that only this process sees."""
        descriptor = os.memfd_create("locks", os.MFD_CLOEXEC)
        locks = cls(f"/proc/self/fd/{descriptor}")
        locks._free.append(descriptor)
        return locks

    def lock(self, start: int, end: int, length: int = 1) -> "Lock | None":
        """Lock the first `length` free bytes in a row from `start` up to `end`; None if there are none."""
        descriptor = self._descriptor()
        while start + length <= end:
            if _try_lock(descriptor, start, length):
                return Lock(descriptor, self._free)
            start = max(start, _end_of_locked(descriptor, start, length))
        self._free.append(descriptor)
        return None

    def wait(self, start: int) -> "Lock":
        """Lock the byte at `start` once it is free. Sleeps in the kernel, without the GIL."""
        descriptor = self._descriptor()
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, start, 1))
        return Lock(descriptor, self._free)

    def is_locked(self, start: int) -> bool:
        descriptor = self._descriptor()
        is_locked = _end_of_locked(descriptor, start, 1) > start
        self._free.append(descriptor)
        return is_locked

    def num_locked(self, start: int, end: int) -> int:
        """Return how many bytes from `start` up to `end` are locked."""
        return sum(map(self.is_locked, range(start, end)))

    def close(self) -> None:
        """Close the file once no lock is held."""
        while self._free:
            os.close(self._free.pop())

    def _descriptor(self) -> int:
        try:
            return self._free.pop()
        except IndexError:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Lock:
    """A range that is locked until `release`, or the end of the context. Any thread may release it."""

    __slots__ = ("_descriptor", "_free")

    def __init__(self, descriptor: int, free: deque[int]) -> None:
        self._descriptor, self._free = descriptor, free

    def release(self) -> None:
        whole = _flock(fcntl.F_UNLCK, 0, 0)  # length 0: up to the end of any file
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, whole)
        self._free.append(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Line:
    """Places from byte `start` up to `end` of a file, and a line of threads that wait for them.

    The byte `turn` is locked by the first thread in line. It alone polls; the others sleep in the kernel, about first
    in, first out.
    """

    def __init__(self, file: LockFile, turn: int, start: int, end: int) -> None:
        self._file, self._turn, self._start, self._end = file, turn, start, end

    @property
    def has_waiting(self) -> bool:
        return self._file.is_locked(self._turn)

    def at_once(self, length: int = 1) -> Lock | None:
        """Take `length` places in a row, even before waiting threads; None if they are not free."""
        return self._file.lock(self._start, self._end, length)

    def wait(self, length: int = 1) -> Lock:
        """Take `length` places in a row, once it is this thread's turn and they are free."""
        with self._file.wait(self._turn):
            while (lock := self.at_once(length)) is None:
                sleep(0.001)  # the threads behind this one sleep in the kernel
            return lock


def _flock(kind: int, start: int, length: int) -> bytes:
    return FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def _try_lock(descriptor: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, start, length))
    except BlockingIOError:
        return False
    return True


def _end_of_locked(descriptor: int, start: int, length: int) -> int:
    """Return the end of a lock that overlaps the range; `start` if there is none."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, start, length))
    kind, _, begin, taken, _ = FLOCK.unpack(found)
    return start if kind == fcntl.F_UNLCK else begin + taken
