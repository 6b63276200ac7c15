"""Records of use: files in use are never removed from a disk, and the least recently used are removed first.

A record is an empty file next to the directory that it stands for. Its modification time is the last use. A process
that uses the files holds a shared lock on the record; the kernel releases it when the process ends, however it ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO


class Uses:
    """Records that this process holds: their files are not removed until `release`, or until the process ends.

    `held` has the records. Threads may share it.
    """

    def __init__(self) -> None:
        self._files: dict[Path, IO[bytes]] = {}
        self._lock = Lock()

    @property
    def held(self) -> list[Path]:
        return list(self._files)

    def hold(self, record: Path) -> None:
        """Record a use, and keep it. Without effect in a cache that is read-only: nobody can remove anything there."""
        with self._lock, suppress(OSError):
            if record not in self._files:
                self._files[record] = _locked(record)
            os.utime(record)

    def last_used(self, at_s: float) -> None:
        """Set the last use of all that is held to `at_s`, in seconds since 1970."""
        with self._lock:
            for record in self._files:
                with suppress(OSError):
                    os.utime(record, (at_s, at_s))

    def release(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> "Uses":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def record_beside(directory: Path) -> Path:
    """Return the path of the record of use of a directory that this package has made."""
    return directory.with_name(f"{directory.name}.used")


@contextmanager
def if_unused(record: Path) -> Iterator[bool]:
    """Yield whether no process uses what the record stands for; then none begins to before the end of the block.

    The block may remove the record. OSError if the record cannot be written.
    """
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = last_use(record)
    with record.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield _is_at(file, record)
        finally:
            if before is None and _is_at(file, record):  # a question leaves no record
                record.unlink()


def last_use(record: Path) -> float | None:
    """Return the last recorded use, in seconds since 1970; None if there is no record."""
    with suppress(OSError):
        return record.stat().st_mtime
    return None


@contextmanager
def shared(lock: Path) -> Iterator[None]:
    """Hold a shared lock on a file; without effect where the file cannot be made."""
    try:
        file = _locked(lock)
    except OSError:
        yield
        return
    with file:
        yield


def _locked(record: Path) -> IO[bytes]:
    """Return the open record with a shared lock; wait while it is being removed."""
    while True:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = record.open("ab")
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_at(file, record):
            return file
        file.close()


def _is_at(file: IO[bytes], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
