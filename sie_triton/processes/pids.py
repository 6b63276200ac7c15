"""Processes by their pid, as the system knows them.

A pid is given away again once its process has ended. So a process is held by a pidfd, which never means another one,
and a pid that is written down has the start of its process beside it.
"""

import os
import select
import signal
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

STATE, PARENT, STARTED = 0, 1, 19  # in /proc/PID/stat, counted from the state on


class ProcessId(NamedTuple):
    """One process for ever; `started` in clock ticks after the machine's start, 0 where there was no such process."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The process that has this pid now."""
        return cls(pid, int((_stat(pid) or ["0"] * (STARTED + 1))[STARTED]))

    @property
    def is_alive(self) -> bool:
        return _is_alive(self._stat())

    @property
    def is_stopped(self) -> bool:
        return self._stat()[:1] == ["T"]

    def send(self, signum: int) -> None:
        """Nobody gets it where the process has ended, whoever has its pid now."""
        with suppress(ProcessLookupError):
            process = Process(self.pid)
            # It has the pid still: so it had it when it was opened.
            if self._stat():
                process.send(signum)

    def _stat(self) -> list[str]:
        found = _stat(self.pid)
        return found if found and int(found[STARTED]) == self.started else []


class Process:
    """One that is held by a pidfd from now on, or by `handle`, which is this object's to close."""

    def __init__(self, pid: int, handle: int | None = None) -> None:
        """ProcessLookupError where there is no such process."""
        self.pid = pid
        self._handle = os.pidfd_open(pid) if handle is None else handle
        # With the last reference: a thread may wait for it.
        weakref.finalize(self, os.close, self._handle)

    def wait(self, seconds: float | None = None) -> bool:
        """True once it has ended."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def send(self, signum: int) -> None:
        """Nothing happens where it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signum)

    @property
    def is_stopped(self) -> bool:
        return not self.wait(0) and is_stopped(self.pid)


def is_alive(pid: int) -> bool:
    """False for one that has ended, even where nobody has taken notice of its end."""
    return _is_alive(_stat(pid))


def is_stopped(pid: int) -> bool:
    return _stat(pid)[:1] == ["T"]


def parent_of(pid: int) -> int:
    """0 where there is no such process."""
    return int((_stat(pid) or ["", "0"])[PARENT])


def children_by_parent() -> Mapping[int, Sequence[int]]:
    """Of all processes there are now."""
    found: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        found.setdefault(parent_of(pid), []).append(pid)
    return found


def _is_alive(stat: list[str]) -> bool:
    return stat[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []
