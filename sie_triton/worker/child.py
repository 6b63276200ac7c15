"""A worker's process as seen from its stage, whether it was started by it or forked by the nursery."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sie_triton.worker.nursery import fork_worker


class Child:
    """A process with `descriptors` to serve; from the nursery in `directory` if there is one."""

    def __init__(self, directory: Path, descriptors: Sequence[int]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        pid = fork_worker(directory, descriptors)
        if pid is None:
            # The stage's own interpreter is embedded in Triton's stub: sys.executable is the python3 it found.
            command = [sys.executable, "-m", "sie_triton.worker", *map(str, descriptors)]
            self._process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
            pid = self._process.pid
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
