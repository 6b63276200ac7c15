"""Forks in place of new interpreters: a confined process then takes milliseconds, and runs the same code."""

import ctypes
import gc
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)

# Function of a module that is run as a program, with the program's arguments.
Main = Callable[[list[str]], object]


class Fork:
    """Stands for a Popen of `python -m MODULE ARGUMENTS`. It inherits all open files."""

    main: Main

    def __init__(self, command: Sequence[str], *, stdin: int, stdout: int, **_: Any) -> None:
        _, _, _, *arguments = command
        theirs, ours = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        output, written = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            self._become(arguments, theirs, written, [each for each in (ours, output) if each is not None])
        os.close(theirs)
        os.close(written)
        self.stdin = os.fdopen(ours, "wb", buffering=0) if ours is not None else None
        self.stdout = os.fdopen(output, "rb", buffering=0)
        self._handle = os.pidfd_open(self.pid)

    def _become(self, arguments: list[str], stdin: int, stdout: int, others: list[int]) -> None:
        """Run the program; never return."""
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            gc.disable()  # it would write to the memory that it shares with its parent
            for each in others:
                os.close(each)
            quiet = os.open(os.devnull, os.O_WRONLY)
            for number, file in enumerate((stdin, stdout, quiet)):
                os.dup2(file, number)
            type(self).main(arguments)
        finally:
            os._exit(1)

    def kill(self) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self.returncode

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout):
            if file is not None:
                file.close()
        self.wait()


@contextmanager
def forking(where: str, main: Main) -> Iterator[None]:
    """Let the module `where` fork instead of starting `python -m MODULE`, whose work is done by `main`."""
    kind = type("OfModule", (Fork,), {"main": staticmethod(main)})
    with patch(f"{where}.subprocess.Popen", kind):
        yield
