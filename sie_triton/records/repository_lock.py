"""The lock of a model repository: nothing changes it while another process does, or while Triton reads it to start."""

import fcntl
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

LOCK = "serving.lock"


@contextmanager
def locked(data_dir: Path, wait_s: float = math.inf) -> Iterator[bool]:
    """Hold the lock of the repository of a data directory; yield False if others still hold it after `wait_s`."""
    with (data_dir / LOCK).open("a") as handle:
        ends_at = monotonic() + wait_s
        while not (is_ours := _took(handle.fileno())) and monotonic() < ends_at:
            sleep(0.05)
        yield is_ours


def _took(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
