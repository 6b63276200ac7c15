"""Check for shared memory before a response is sent.

Triton's Python backend passes responses through a region in /dev/shm, which it grows as needed. If it cannot grow, a
response returned from `execute` becomes an error, but a deferred response is lost, and no other can be sent in its
place. Therefore deferred responses are sent only once there is enough memory.
"""

import os
import time
from pathlib import Path
from threading import Lock

# Smaller responses fit into the region without growing it.
SMALL_BYTES = 64 * 1024

# The region grows by this much at a time.
GROWTH_BYTES = 1024 * 1024

# Maximum time without room, in seconds, before responses are given up, and the polling interval. Responses wait one
# after another, so the time counts from when room ran out, not for each.
PATIENCE_S = 1.0
LOOK_S = 0.02


class AnswerRoom:
    """Waits for free shared memory. One object per process.

    Each thread that has a deferred response calls `wait_for`, which blocks that thread and those that call it later.
    Raises OSError only if the directory does not exist.
    """

    def __init__(self, directory: Path = Path("/dev/shm")) -> None:
        self._directory = directory
        self._full_since: float | None = None
        self._lock = Lock()

    def wait_for(self, num_bytes: int) -> bool:
        """True once there is room for a response of `num_bytes`; False if there was none for PATIENCE_S."""
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
