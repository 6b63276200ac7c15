"""A process of ours: started, watched from its birth by a pidfd, and ended."""

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

from sie_triton.private import private_directory
from sie_triton.processes import hidden
from sie_triton.processes.log import Log
from sie_triton.processes.pids import Process, ProcessId

PR_SET_PDEATHSIG = 1

# A line of the stack that Triton writes when it is about to die of a signal.
FRAME = re.compile(r"^ *\d+# 0x[0-9A-F]+ in (?:.*/)?(\S+)$", re.MULTILINE)

LIBC = ctypes.CDLL(None)


class Child(Process):
    """Held by `handle`, a pidfd that was opened before anybody could have taken notice of its end."""

    def __init__(self, pid: int, handle: int) -> None:
        super().__init__(pid, handle)
        self.id = ProcessId.of(pid)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> None:
        """Return once it has ended, by itself within `seconds` or killed."""
        self.wait(seconds)
        self.kill()
        self.wait()

    @property
    def status(self) -> int | None:
        """Of one that has ended: its exit status, or minus the signal; None where nobody knows."""
        return None

    @property
    def was_killed(self) -> bool:
        """As the system does when memory is short; assumed of one whose status nobody knows."""
        return self.status in (None, -signal.SIGKILL)

    def log(self) -> str:
        """What it wrote, where it has a log of its own."""
        return ""

    @property
    def how_it_ended(self) -> str:
        return how_it_ended(self.status, self.log())


class Started(Child):
    """One that this process started. Where it leads a session, what it leaves in there ends with it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Callable[[], str], *, leads: bool) -> None:
        super().__init__(process.pid, os.pidfd_open(process.pid))
        self._process = process
        self._leads = leads
        self._reaping = Lock()
        self._log = log

    def kill(self) -> None:
        super().kill()
        # Until it is reaped nobody else can have its pid.
        with self._reaping, suppress(ProcessLookupError):
            if self._leads and self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> None:
        super().end(seconds)
        self.reap()

    def reap(self) -> None:
        """Wait for its end; what it started lives on."""
        self.wait()
        with self._reaping:
            self._process.wait()

    @property
    def status(self) -> int | None:
        """Waits for its end, and does not reap it."""
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
    secrets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    log: Path | Log | None = None,
    cwd: Path | None = None,
    descriptors: Sequence[int] = (),
    before: Callable[[], None] | None = None,
    leads: bool = True,
) -> Started:
    """`command` with the arguments `secrets` after it, which nobody else can read where this system can hide them.

    It writes to the end of `log`, or where this process does, inherits `descriptors`, runs `before` first, and leads a
    session of its own if it is to lead one.
    """
    options: dict[str, Any] = {"cwd": cwd, "stdin": subprocess.DEVNULL, "start_new_session": leads}
    with ExitStack() as stack:
        read = _nothing_written
        if log is not None:
            output, read = _output(log, stack)
            options.update(stdout=output, stderr=output)
        if secrets:
            with suppress(OSError):
                process = hidden.start(command, secrets, environment or os.environ, before or _nothing, **options)
                return Started(process, read, leads=leads)
        command = [*command, *secrets]
        process = subprocess.Popen(command, env=environment, preexec_fn=before, pass_fds=descriptors, **options)
        return Started(process, read, leads=leads)


def _output(log: Path | Log, stack: ExitStack) -> tuple[int, Callable[[], str]]:
    """Descriptor that writes to `log`, and a function that reads the output from now on."""
    if isinstance(log, Log):
        return log.writer, log.from_here()
    private_directory(log.parent)
    file = stack.enter_context(log.open("ab"))
    start = file.tell()
    return file.fileno(), lambda: log.read_bytes()[start:].decode(errors="replace")


def end_with_parent() -> None:
    """For a child, before it starts its program: it gets SIGTERM when the thread that started it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def how_it_ended(status: int | None, log: str = "") -> str:
    """
    >>> how_it_ended(-9)
    'by SIGKILL, as the system does when memory is short'
    >>> stack = "0# 0x1 in tritonserver\\n1# 0x2 in /libc.so.6\\n2# 0x3 in /x/y.so\\n"
    >>> how_it_ended(-11, "Signal (11) received.\\n" + stack)
    'by SIGSEGV in y.so'
    >>> how_it_ended(1)
    'with status 1'
    """
    if status is None:
        return "unexpectedly; is memory short?"
    if status >= 0:
        return f"with status {status}"
    name = signal.Signals(-status).name
    if -status == signal.SIGKILL:
        return f"by {name}, as the system does when memory is short"
    # The first is the handler that prints the stack, called from the C library.
    frames = [where for where in FRAME.findall(log.rpartition("Signal (")[2])[1:] if not where.startswith("libc.")]
    return f"by {name} in {frames[0]}" if frames else f"by {name}"


def _nothing() -> None:
    pass


def _nothing_written() -> str:
    return ""
