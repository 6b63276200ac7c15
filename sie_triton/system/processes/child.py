"""Child processes, each held by a pidfd from its start."""

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.pids import Process, ProcessId

PR_SET_PDEATHSIG = 1

# A stack frame in Triton's output before a signal kills it.
FRAME = re.compile(r"^ *\d+# 0x[0-9A-F]+ in (?:.*/)?(\S+)$", re.MULTILINE)

LIBC = ctypes.CDLL(None)


class Child(Process):
    """A child process, held by the pidfd `handle`, which was opened before the child could be reaped."""

    def __init__(self, pid: int, handle: int) -> None:
        super().__init__(pid, handle)
        self.id = ProcessId.of(pid)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for the process to end, then kill it. Return once it has ended."""
        self.wait(seconds)
        self.kill()
        self.wait()

    @property
    def status(self) -> int | None:
        """Exit status of a process that has ended, or minus the signal; None if unknown."""
        return None

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended the process, as when memory is short; also if the status is unknown."""
        return self.status in (None, -signal.SIGKILL)

    def log(self) -> str:
        """Return the output of the process, if it has a log of its own."""
        return ""

    @property
    def describe_exit(self) -> str:
        return describe_exit(self.status, self.log())


class Started(Child):
    """A child that this process started. If it leads a session, the other processes of the session end with it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Callable[[], str], *, leads: bool) -> None:
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:  # no file handle is left: it would run unsupervised
            process.kill()
            process.wait()
            raise
        super().__init__(process.pid, handle)
        self._process = process
        self._leads = leads
        self._reaping = Lock()
        self._log = log

    def kill(self) -> None:
        super().kill()
        # No other process can have its pid until it is reaped.
        with self._reaping, suppress(ProcessLookupError):
            if self._leads and self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> None:
        super().end(seconds)
        self.reap()

    def reap(self) -> None:
        """Wait until the process has ended, and reap it. Processes that it started live on."""
        self.wait()
        with self._reaping:
            self._process.wait()

    @property
    def status(self) -> int | None:
        """Exit status, or minus the signal. Waits until the process has ended, without reaping it."""
        self.wait()
        with self._reaping:
            if self._process.returncode is not None:
                return self._process.returncode
            found = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def log(self) -> str:
        return self._log()


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    log: Path | Log | None = None,
    cwd: Path | None = None,
    descriptors: Sequence[int] = (),
    before: Callable[[], None] | None = None,
    leads: bool = True,
) -> Started:
    """Start `command`, which appends its output to `log`, or shares the output of this process.

    The process inherits `descriptors`, calls `before` first, and leads a new session if `leads`.
    """
    options: dict[str, Any] = {"cwd": cwd, "stdin": subprocess.DEVNULL, "start_new_session": leads}
    with ExitStack() as stack:
        read: Callable[[], str] = str  # nothing
        if log is not None:
            output, read = _output(log, stack)
            options.update(stdout=output, stderr=output)
        process = subprocess.Popen(command, env=environment, preexec_fn=before, pass_fds=descriptors, **options)
        return Started(process, read, leads=leads)


def _output(log: Path | Log, stack: ExitStack) -> tuple[int, Callable[[], str]]:
    """Return a descriptor that writes to `log`, and a function that reads the output from now on."""
    if isinstance(log, Log):
        return log.writer, log.reader_from_now()
    private_directory(log.parent)
    file = stack.enter_context(log.open("ab"))
    start = file.tell()
    return file.fileno(), lambda: log.read_bytes()[start:].decode(errors="replace")


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when the thread that started it ends. To be called in a child."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def describe_exit(status: int | None, log: str = "") -> str:
    """
    >>> describe_exit(-9)
    'by SIGKILL, as the system does when memory is short'
    >>> stack = "0# 0x1 in tritonserver\\n1# 0x2 in /libc.so.6\\n2# 0x3 in /x/y.so\\n"
    >>> describe_exit(-11, "Signal (11) received.\\n" + stack)
    'by SIGSEGV in y.so'
    >>> describe_exit(1)
    'with status 1'
    """
    if status is None:
        return "unexpectedly; is memory short?"
    if status >= 0:
        return f"with status {status}"
    name = signal.Signals(-status).name
    if -status == signal.SIGKILL:
        return f"by {name}, as the system does when memory is short"
    # The first frame is the handler that prints the stack, which the C library calls.
    frames = [where for where in FRAME.findall(log.rpartition("Signal (")[2])[1:] if not where.startswith("libc.")]
    return f"by {name} in {frames[0]}" if frames else f"by {name}"
