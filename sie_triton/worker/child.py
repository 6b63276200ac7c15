"""A worker's process as seen from its stage, whether it was started by it or forked by the nursery."""

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sie_triton.worker.nursery import fork_worker


class Child:
    """A process that serves the other ends of `connections`; from the nursery in `directory` if there is one."""

    def __init__(self, directory: Path, num_connections: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        ours, theirs = _pairs(num_connections)
        pid = fork_worker(directory, [end.fileno() for end in theirs])
        if pid is None:
            # A nursery that comes round later finds the ends it was given closed, and so does what it forks for them.
            _close([*ours, *theirs])
            ours, theirs = _pairs(num_connections)
            descriptors = [end.fileno() for end in theirs]
            # The stage's own interpreter is embedded in Triton's stub: sys.executable is the python3 it found.
            command = [sys.executable, "-m", "sie_triton.worker", *map(str, descriptors)]
            self._process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
            pid = self._process.pid
        _close(theirs)
        self.connections: list[Connection[Any, Any]] = [Connection(end.detach()) for end in ours]
        self.pid = pid
        self._handle = -1
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)

    def wait(self, seconds: float | None = None) -> bool:
        """True once it has ended."""
        if self._handle >= 0:
            ended, _, _ = select.select([self._handle], [], [], seconds)
            if not ended:
                return False
        if self._process is not None:
            self._process.wait()
        return True

    def kill(self) -> None:
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    @property
    def is_stopped(self) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def how_it_ended(self) -> str:
        return "unexpectedly; is memory short?" if self._status is None else _how(self._status)

    @property
    def was_killed(self) -> bool:
        """As the system does when memory is short; assumed of a process whose status is not known."""
        return self._status in (None, -signal.SIGKILL)

    @property
    def _status(self) -> int | None:
        """Known only of a process of our own."""
        return self._process.returncode if self._process is not None else None


def _pairs(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _close(ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()


def _how(status: int) -> str:
    """
    >>> _how(-9)
    'by SIGKILL, as the system does when memory is short'
    >>> _how(1)
    'with status 1'
    """
    if status == -signal.SIGKILL:
        return "by SIGKILL, as the system does when memory is short"
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
