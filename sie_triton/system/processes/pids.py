"""Processes by pid.

The system reuses the pid of a process that has ended. Therefore a process is held by a pidfd, which never refers to
another process, and a recorded pid has the start time of its process beside it.
"""

import os
import select
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from sie_triton.system.host.files import read_small

STATE, PARENT, STARTED = 0, 1, 19  # fields of /proc/PID/stat, counted from the state

# States of a process. One that has ended but was not reaped is no more; UNKNOWN: no file handle was left to look.
ENDED, STOPPED, UNKNOWN = "", "T", "?"


class ProcessId(NamedTuple):
    """Permanent id of a process. `started` is in clock ticks after boot; 0 if there was no such process.

    A process counts as alive, and as running, while this process has no file handle left to look at it.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Return the id of the process that has this pid now."""
        found: list[str] = []
        with suppress(OSError):
            found = _stat(pid)
        return cls(pid, int(found[STARTED]) if found else 0)

    @property
    def state(self) -> str:
        """ENDED, STOPPED, UNKNOWN, or another letter of /proc/PID/stat."""
        return _state(self._stat)

    @property
    def is_alive(self) -> bool:
        return self.state != ENDED

    @property
    def is_stopped(self) -> bool:
        return self.state == STOPPED

    def send(self, signum: int) -> None:
        """Send a signal to the process, and to no other if it has ended."""
        with suppress(ProcessLookupError):
            process = Process(self.pid)
            # The process still has the pid, so the pidfd refers to it.
            if self._stat():
                process.send(signum)

    def _stat(self) -> list[str]:
        found = _stat(self.pid)
        return found if found and int(found[STARTED]) == self.started else []


class Process:
    """A process held by a new pidfd, or by `handle`, which this object then owns."""

    def __init__(self, pid: int, handle: int | None = None) -> None:
        """Raise ProcessLookupError if there is no such process."""
        self.pid = pid
        self._handle = os.pidfd_open(pid) if handle is None else handle
        # Closed with the last reference, because a thread may be waiting for it.
        weakref.finalize(self, os.close, self._handle)

    def fileno(self) -> int:
        """Return the pidfd, which is readable once the process has ended."""
        return self._handle

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds`, None: without limit. True once the process has ended."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def send(self, signum: int) -> None:
        """Send a signal; do nothing if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signum)

    @property
    def is_stopped(self) -> bool:
        return not self.wait(0) and is_stopped(self.pid)


def is_alive(pid: int) -> bool:
    """True if a process with this pid is alive; a process that has ended but was not reaped is not."""
    return _state(partial(_stat, pid)) != ENDED


def is_stopped(pid: int) -> bool:
    return _state(partial(_stat, pid)) == STOPPED


def parent_of(pid: int) -> int:
    """Return the pid of the parent; 0 if there is no such process."""
    return int((_stat(pid) or ["", "0"])[PARENT])


def children_by_parent() -> Mapping[int, Sequence[int]]:
    """Map the pid of each parent to the pids of its children, for all processes that this user may see.

    Raise OSError if there is no file handle left to look.
    """
    found: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(PermissionError):  # /proc may hide the processes of other users
            found.setdefault(parent_of(pid), []).append(pid)
    return found


def _state(stat: Callable[[], list[str]]) -> str:
    with suppress(OSError):
        found = stat()
        return found[STATE] if found and found[STATE] not in ("Z", "X") else ENDED
    return UNKNOWN


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, from the state; empty if there is no such process. OSError if unknown."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # The name of a process may be any bytes.
        return read_small(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].decode().split()
    return []


# Number of the descriptor in a stand-in that is a pidfd of the other process; all others are lower.
HANDLE = 500


def represented_pid(pid: int) -> int | None:
    """Return the pid of the process for which `pid` stands in; None if it is not a stand-in, or if that has ended."""
    with suppress(OSError, ValueError):
        for line in read_small(f"/proc/{pid}/fdinfo/{HANDLE}", 1024).splitlines():
            name, _, value = line.partition(b":")
            if name == b"Pid" and int(value) > 0:
                return int(value)
    return None
