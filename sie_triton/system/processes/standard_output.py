"""Lines for standard output, which no reader can hold up: one that reads too slowly loses lines, and is told so."""

import os
from collections.abc import Callable
from queue import Full, Queue
from threading import Event, Thread

STANDARD_OUTPUT = 1


class Output:
    """Writes whole lines to a file descriptor, on a thread of its own. Any thread may call any method.

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
