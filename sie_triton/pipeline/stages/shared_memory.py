"""Check for shared memory before a response is sent.

Triton's Python backend passes responses through a region in /dev/shm, which it grows as needed. If it cannot grow, a
response returned from `execute` becomes an error, but a deferred response is lost, and no other can be sent in its
place. Therefore deferred responses are sent only once there is enough memory.
"""

import os
import time
from pathlib import Path
from threading import Lock

from sie_triton.pipeline.limits import StageLimits


class AnswerRoom:
    """Waits for free shared memory. One object per process.

    Each thread that has a deferred response calls `wait_for`, which blocks that thread and those that call it later.
    Raises OSError only if the directory does not exist.
    """

    def __init__(self, directory: Path = Path("/dev/shm"), limits: StageLimits = StageLimits()) -> None:
        self._directory, self._limits = directory, limits
        self._full_since: float | None = None
        self._lock = Lock()

    def wait_for(self, num_bytes: int) -> bool:
        """True once there is room for a response of `num_bytes`; False if there was none for `no_room_s`."""
        limits = self._limits
        if num_bytes < limits.small_response_bytes:
            return True
        with self._lock:
            while not self._has(num_bytes + limits.region_growth_bytes):
                now = time.monotonic()
                self._full_since = self._full_since or now
                if now - self._full_since > limits.no_room_s:
                    return False
                time.sleep(limits.room_poll_s)
            self._full_since = None
            return True

    def _has(self, num_bytes: int) -> bool:
        free = os.statvfs(self._directory)
        return free.f_bavail * free.f_bsize >= num_bytes
