"""Log files of child processes, bounded in size and in rate.

A child writes to a pipe. A thread of this process moves whole lines from the pipe to the file, and is the only writer
of the file. While this process is suspended, a child that has filled the pipe blocks.
"""

import fcntl
import logging
import os
import re
import select
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import Full, Queue
from threading import Event, RLock, Thread
from time import monotonic

from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.limits import ProcessLimits

PIPE_BYTES = 1024**2
READ_BYTES = 64 * 1024

NUMBER = re.compile(rb"[0-9]+")


class Quota:
    """Rate limiter of lines. Lines that differ only in their digits count as repetitions of one line."""

    def __init__(self, limits: ProcessLimits = ProcessLimits()) -> None:
        self._limits = limits
        self._ends = 0.0
        self._num_bytes = 0
        self._repeats: Counter[bytes] = Counter()
        self._num_left_out = 0

    def allows(self, line: bytes) -> bool:
        """Count `line`; False if it exceeds a limit."""
        kind = NUMBER.sub(b"0", line)
        is_allowed = (
            self._repeats[kind] < self._limits.max_repeats
            and self._num_bytes + len(line) <= self._limits.max_window_bytes
        )
        if is_allowed:
            self._repeats[kind] += 1
            self._num_bytes += len(line)
        else:
            self._num_left_out += 1
        return is_allowed

    def end_window(self, now: float) -> int:
        """Begin a new window if the old one is over at `now`, in seconds; return the number of lines that it lost."""
        if now < self._ends:
            return 0
        num_left_out = self._num_left_out
        self._ends, self._num_bytes, self._num_left_out = now + self._limits.window_s, 0, 0
        self._repeats.clear()
        return num_left_out


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a line as lost, for example when the disk is full."""


class Log:
    """A log file and the pipe that leads to it.

    `form` turns a line into what is written, and `copy` receives that too. Use as a context manager. Several programs
    may use one log: it closes when the last of them has left. All methods may be called from any thread.
    """

    def __init__(
        self,
        path: Path,
        form: Callable[[str], str] = str,
        *,
        copy: Callable[[str], None] = lambda line: None,
        limits: ProcessLimits = ProcessLimits(),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.path = path
        self._form, self._copy = form, copy
        self._clock = clock
        self._limits = limits
        self._lock = RLock()
        self._num_users = 0
        self._is_open = False
        self._quota = Quota(limits)
        self._line = b""
        self._tail = b""
        self._num_bytes = 0

    def __enter__(self) -> "Log":
        with self._lock:
            if not self._num_users:
                self._open()
            self._num_users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
        self._close()

    @property
    def writer(self) -> int:
        """Descriptor for the standard output and standard error of a child."""
        return self._writer

    def reader_from_now(self) -> Callable[[], str]:
        """Return a function that reads the output since this call, at most its last 64 KiB."""
        self._move()
        start = self._num_bytes

        def read() -> str:
            self._move()
            with self._lock:
                num_bytes = min(self._num_bytes - start, len(self._tail))
                return self._tail[len(self._tail) - num_bytes :].decode(errors="replace")

        return read

    def _open(self) -> None:
        directory = private_directory(self.path.parent)
        path = directory / self.path.name
        sizes = {"maxBytes": self._limits.max_file_bytes, "backupCount": self._limits.num_old_files}
        self._file = _File(path, **sizes, encoding="utf-8")  # type: ignore[arg-type]
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        with suppress(OSError):  # the user's limit is lower
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._closing = os.eventfd(0)
        self._is_open = True
        self._thread = Thread(target=self._run, name=self.path.name, daemon=True)
        self._thread.start()

    def _close(self) -> None:
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        self._move()
        with self._lock:
            self._write(self._line)
            self._line, self._is_open = b"", False
            self._report(self._quota.end_window(float("inf")))
            self._quota = Quota(self._limits)
            with suppress(OSError):
                self._file.close()
            for descriptor in (self._reader, self._writer, self._closing):
                os.close(descriptor)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        while not any(descriptor == self._closing for descriptor, _ in poll.poll(self._limits.window_s * 1000)):
            self._move()

    def _move(self) -> None:
        """Move at least the pipe's content at the time of the call to the file."""
        with self._lock, suppress(BlockingIOError):
            if not self._is_open:
                return
            self._report(self._quota.end_window(self._clock()))
            for _ in range(PIPE_BYTES // READ_BYTES):
                self._take(os.read(self._reader, READ_BYTES))

    def _take(self, text: bytes) -> None:
        self._num_bytes += len(text)
        self._tail = (self._tail + text)[-self._limits.tail_bytes :]
        *lines, self._line = (self._line + text.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            self._write(line)
        longest = self._limits.max_line_bytes
        while len(self._line) > longest:
            self._write(self._line[:longest])
            self._line = self._line[longest:]

    def _write(self, line: bytes) -> None:
        if line and self._quota.allows(line):
            self._emit(line.decode(errors="replace"))

    def _report(self, num_left_out: int) -> None:
        if num_left_out:
            within = f"{self._limits.window_s:g} s"
            self._emit(f"[{num_left_out} lines were left out: repetitions, or too many within {within}]")

    def _emit(self, text: str) -> None:
        if not (line := self._form(text)):
            return
        self._file.emit(logging.makeLogRecord({"msg": line}))
        self._copy(line)


STANDARD_OUTPUT = 1


class Output:
    """Writes whole lines to a file descriptor, on a thread of its own, so that no reader can hold up the others.

    `form` turns the line about lost lines into what is written. Once the descriptor cannot be written, for example
    because its reader has ended, all further lines are dropped.
    """

    def __init__(
        self, descriptor: int = STANDARD_OUTPUT, form: Callable[[str], str] = str, max_waiting: int = 10_000
    ) -> None:
        self._descriptor = descriptor
        self._form = form
        self._lines: Queue[str | Event] = Queue(max_waiting)
        self.num_lost = 0
        self._thread = Thread(target=self._run, name="standard-output", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line; count it in `num_lost` if too many wait."""
        try:
            self._lines.put_nowait(line)
        except Full:
            self.num_lost += 1

    def flush(self) -> None:
        """Wait until the reader has taken the lines written so far, at most a second twice."""
        written = Event()
        try:
            self._lines.put(written, timeout=1.0)
        except Full:
            return
        written.wait(1.0)

    def _run(self) -> None:
        num_reported = 0
        while True:
            line = self._lines.get()
            try:
                if num_lost := self.num_lost - num_reported:
                    num_reported += num_lost
                    self._write(self._form(f"[{num_lost} lines were left out: they were read too slowly]"))
                if isinstance(line, Event):
                    line.set()
                else:
                    self._write(line)
            except OSError:
                return

    def _write(self, line: str) -> None:
        data = f"{line}\n".encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
