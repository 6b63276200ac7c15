"""Files that processes map and write to."""

import os
from pathlib import Path


def reserve(path: Path, num_bytes: int) -> None:
    """Create a file of zeros, with space on the disk for all of it. OSError if there is none.

    A process that writes to a hole of a mapped file while the disk is full ends with SIGBUS.
    """
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError:
            path.unlink()
            raise


def reserve_rest(path: Path, num_bytes: int) -> None:
    """Extend a file to `num_bytes` at least, with space on the disk for all of it. OSError if there is none."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, max(num_bytes, os.fstat(file.fileno()).st_size))
