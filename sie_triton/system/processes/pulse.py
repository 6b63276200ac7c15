"""Heartbeats of a child process, through a pipe.

The child writes a byte from the loop that does its work. The parent polls the pipe and counts the polls that found no
byte, not the time: a parent that was suspended or starved too has not polled, and therefore kills no child.
"""

import os
from contextlib import suppress

from sie_triton.system.processes.limits import ProcessLimits

VARIABLE = "SIE_PULSE_DESCRIPTOR"


def beat() -> None:
    """Send a heartbeat to the parent, if it watches for them: once a second."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):  # the pipe is full, or the parent has ended
            os.write(int(descriptor), b".")


class Pulse:
    """Parent's end of the pipe for one child. The child inherits `descriptor` and `environment`."""

    def __init__(self, limits: ProcessLimits = ProcessLimits()) -> None:
        self._reader, self.descriptor = os.pipe()
        for end in (self._reader, self.descriptor):
            os.set_blocking(end, False)
        self._limits, self._num_left = limits, limits.max_silent_polls_at_start

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.descriptor)}

    def is_lost(self) -> bool:
        """Poll once; True after `max_silent_polls` in a row without a heartbeat."""
        with suppress(BlockingIOError):
            if os.read(self._reader, 64 * 1024):
                self._num_left = self._limits.max_silent_polls
                return False
        self._num_left -= 1
        return self._num_left <= 0

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)
