"""Lines for standard output, which no reader can hold up: one that reads too slowly loses lines."""

import os
from functools import cache
from queue import Full, Queue
from threading import Thread

# Lines that wait for the reader.
MAX_WAITING = 10_000

# Time at the end of the process for the lines that still wait, in seconds.
LAST_S = 1.0

STANDARD_OUTPUT = 1


class Output:
    """Writes whole lines to a file descriptor, on a thread of its own. Any thread may call any method.

    Once the descriptor cannot be written, for example because its reader has ended, all further lines are dropped.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING) -> None:
        self._descriptor = descriptor
        self._lines: Queue[str | None] = Queue(max_waiting)
        self.num_lost = 0
        self._thread = Thread(target=self._run, name="standard-output", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line; count it in `num_lost` if too many wait."""
        self._put(line)

    def close(self) -> None:
        """Write what waits, as far as the reader takes it within LAST_S."""
        self._put(None)
        self._thread.join(LAST_S)

    def _put(self, line: str | None) -> None:
        try:
            self._lines.put_nowait(line)
        except Full:
            self.num_lost += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                write_all(self._descriptor, f"{line}\n".encode())
            except OSError:
                return


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however long the reader takes."""
    while data:
        data = data[os.write(descriptor, data) :]


@cache
def standard_output() -> Output:
    """Return the standard output of this process."""
    return Output(STANDARD_OUTPUT)
