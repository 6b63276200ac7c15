"""Is there shared memory for an answer?

Triton's Python backend carries answers through a region in /dev/shm that it grows as needed. Where that fails, an
answer returned from `execute` becomes an error; one that is sent later is lost, and with it the right to send another.
So room is looked for first.
"""

import os
import time
from pathlib import Path
from threading import Lock

SHARED_MEMORY = Path("/dev/shm")

# Less than this finds its place in the region as it is.
SMALL_BYTES = 64 * 1024

# The region grows by this much at a time.
GROWTH_BYTES = 1024 * 1024

# From when there was no room, answers wait this long altogether before they are given up; others wait behind them.
PATIENCE_S = 1.0
LOOK_S = 0.02


class AnswerRoom:
    """Since when shared memory has had no room for an answer; one for a process.

    `wait_for` is called by whichever thread has a deferred answer to send, and blocks that thread and those behind
    it. Only a directory that is gone makes it raise, OSError.
    """

    def __init__(self, directory: Path = SHARED_MEMORY) -> None:
        self._directory = directory
        self._full_since: float | None = None
        self._lock = Lock()

    def wait_for(self, num_bytes: int) -> bool:
        """True once there is room for an answer of `num_bytes`; False if there was none for PATIENCE_S."""
        if num_bytes < SMALL_BYTES:
            return True
        with self._lock:
            while not self._has(num_bytes + GROWTH_BYTES):
                now = time.monotonic()
                self._full_since = self._full_since or now
                if now - self._full_since > PATIENCE_S:
                    return False
                time.sleep(LOOK_S)
            self._full_since = None
            return True

    def _has(self, num_bytes: int) -> bool:
        free = os.statvfs(self._directory)
        return free.f_bavail * free.f_bsize >= num_bytes
