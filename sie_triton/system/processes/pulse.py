"""Heartbeats of a child process, through a pipe.

The child writes a byte from the loop that does its work. The parent polls the pipe and counts the polls that found no
byte, not the time: a parent that was suspended or starved too has not polled, and therefore kills no child.
"""

import os
from contextlib import suppress

VARIABLE = "SIE_PULSE_DESCRIPTOR"

# Polling interval of the parent, in seconds. The child should beat as often.
LOOK_S = 1.0

# Number of polls without a heartbeat after which the child is lost; higher before the first, for the child's imports.
MAX_SILENT = 30
MAX_SILENT_AT_START = 150

READ_BYTES = 64 * 1024


def beat() -> None:
    """Send a heartbeat to the parent, if it watches for them."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):  # the pipe is full, or the parent has ended
            os.write(int(descriptor), b".")


class Pulse:
    """Parent's end of the pipe for one child. The child inherits `descriptor` and `environment`."""

    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        for end in (self._reader, self.descriptor):
            os.set_blocking(end, False)
        self._num_left = MAX_SILENT_AT_START

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.descriptor)}

    def is_lost(self) -> bool:
        """Poll once; True after MAX_SILENT polls in a row without a heartbeat."""
        with suppress(BlockingIOError):
            if os.read(self._reader, READ_BYTES):
                self._num_left = MAX_SILENT
                return False
        self._num_left -= 1
        return self._num_left <= 0

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)
