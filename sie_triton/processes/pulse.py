"""Signs of life of a child process, through a pipe.

The child writes a byte from the loop that does its work. Its parent counts its own looks that found none: a parent
that was suspended or starved too has not looked, and so ends no child for it.
"""

import os
from contextlib import suppress

VARIABLE = "SIE_PULSE_DESCRIPTOR"

# Seconds between two looks of the parent. The child should beat as often.
LOOK_S = 1.0

# Looks without a sign of life after which the child is lost; more before the first sign, for the child's imports.
MAX_SILENT = 30
MAX_SILENT_AT_START = 150

READ_BYTES = 64 * 1024


def beat() -> None:
    """Give a sign of life to the parent, if it wants one."""
    if descriptor := os.environ.get(VARIABLE):
        with suppress(OSError):  # the pipe is full, or the parent has ended
            os.write(int(descriptor), b".")


class Pulse:
    """The parent's end, for one child. The child inherits `descriptor` and `environment`."""

    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        for end in (self._reader, self.descriptor):
            os.set_blocking(end, False)
        self._num_left = MAX_SILENT_AT_START

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.descriptor)}

    def is_lost(self) -> bool:
        """Look once; True after MAX_SILENT looks in a row without a sign of life."""
        with suppress(BlockingIOError):
            if os.read(self._reader, READ_BYTES):
                self._num_left = MAX_SILENT
                return False
        self._num_left -= 1
        return self._num_left <= 0

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)
