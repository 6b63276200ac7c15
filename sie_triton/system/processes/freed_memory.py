"""Return freed memory to the system, in processes that hold large requests, or their passes, for a short time.

Three things retain it. glibc puts blocks of up to 32 MiB into heaps, where a used block behind a free one retains both.
glibc's heaps return only their ends by themselves. Python collects cycles late, such as those of exceptions, whose
frames refer to whole requests. docs/decisions/door.md, "Freed memory", has the figures.
"""

import gc
from collections.abc import Callable
from threading import Thread
from time import sleep

from sie_triton.system.host.process_memory import private_bytes, return_freed

# Environment of a process whose glibc returns each freed block of 1 MiB and more at once. It keeps up to 2 MiB at the
# end of its heap: with its default of 128 KiB, each receive buffer of asyncio (256 KiB) would be a system call to get
# it, one to return it, and 64 page faults.
LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2 * 2**20)}


class Returner:
    """Returns the freed memory of this process once it has grown. Belongs to one thread.

    `measure` gives the memory of this process in bytes, `give_back` returns what is free, which takes milliseconds.
    Once in `interval_s` seconds it is returned if the process holds `slack_bytes` more than after the last return.
    """

    interval_s, slack_bytes = 10.0, 8 * 2**20

    def __init__(self, measure: Callable[[], int] = private_bytes, give_back: Callable[[], None] | None = None) -> None:
        self._measure = measure
        self._give_back = give_back or return_freed
        self._kept = measure()

    def look(self) -> None:
        if self._measure() >= self._kept + self.slack_bytes:
            self._give_back()
            self._kept = self._measure()


class PassReturner(Returner):
    """Returns what forward passes leave: at rest all of it, at work what they do not need.

    `passes` gives the numbers of started and ended passes; all at once take `pass_bytes`. They soon fill again what is
    free, and may fill the memory faster than requests do.
    """

    interval_s, slack_bytes = 5.0, 64 * 2**20

    def __init__(
        self,
        pass_bytes: int,
        passes: Callable[[], tuple[int, int]],
        measure: Callable[[], int] = private_bytes,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(measure, give_back)
        self._pass_bytes, self._passes = pass_bytes, passes
        self._seen, self._is_returned = passes(), True

    def look(self) -> None:
        seen = self._passes()
        is_resting = seen == self._seen and seen[0] == seen[1]
        self._seen = seen
        if is_resting and self._is_returned:
            return
        self._is_returned = is_resting
        if is_resting or self._measure() >= self._kept + self._pass_bytes + self.slack_bytes:
            self._give_back()
            # At work, passes in progress hold a part of what is left.
            self._kept = self._measure() if is_resting else max(self._kept, self._measure() - self._pass_bytes)


def keep_returning(returner: Returner | None = None) -> None:
    """Start a daemon thread that returns freed memory for as long as this process lives, by default a plain Returner.

    Python's collector ignores all objects that exist now, so that each return is short.
    """
    gc.collect()
    gc.freeze()
    chosen = returner or Returner()

    def look_endlessly() -> None:
        while True:
            sleep(chosen.interval_s)
            chosen.look()

    Thread(target=look_endlessly, name="freed memory", daemon=True).start()
