"""The controller's bell: a FIFO among the status records. Processes ring it when the controller must not rest."""

import os
import weakref
from contextlib import suppress
from pathlib import Path

NAME = "controller.bell"


def ring(directory: Path) -> None:
    """Wake the controller of the status records in `directory`, if one listens."""
    with suppress(OSError):
        descriptor = os.open(directory / NAME, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):  # full, so the controller has been rung
            os.write(descriptor, b".")
        os.close(descriptor)


class Bell:
    """The controller's end, readable once it was rung. Raise OSError if the directory takes no FIFO."""

    def __init__(self, directory: Path) -> None:
        with suppress(FileExistsError):
            os.mkfifo(directory / NAME, 0o600)
        self._descriptor = os.open(directory / NAME, os.O_RDWR | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def silence(self) -> None:
        """Forget that it was rung."""
        with suppress(BlockingIOError):
            os.read(self._descriptor, 64 * 1024)
