"""Who runs on the device next, and how many side by side.

A lane runs one sub-batch at a time. A GPU is one lane. On a CPU two lanes with half the threads each
beat one with all of them: threads of one forward pass wait for each other at every layer, also for one
that was interrupted; forward passes beside each other do not (measured in ARCHITECTURE.md).
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

MAX_CPU_LANES = 2

# So many interactive sub-batches per lane may go before a bulk one that waits.
INTERACTIVE_BEFORE_BULK = 2

Work = Callable[[], None]


class Device:
    """Hands out lanes: interactive work first, but bulk work never starves."""

    def __init__(self, device: str) -> None:
        self._num_cores = len(os.sched_getaffinity(0))
        self._on_cpu = device == "cpu"
        self.num_lanes = min(MAX_CPU_LANES, self._num_cores) if self._on_cpu else 1
        self._changed = threading.Condition()
        self._free = self.num_lanes
        self._waiting = {"interactive": 0, "bulk": 0}
        self._since_bulk = 0
        self._thread = threading.local()
        self._pool = ThreadPoolExecutor(self.num_lanes, "lane")

    @contextmanager
    def whole(self) -> Iterator[bool]:
        """All lanes, with all threads, for work on the calling thread; False if one is taken."""
        with self._changed:
            granted = self._free == self.num_lanes and not any(self._waiting.values())
            if granted:
                self._free = 0
        try:
            if granted:
                self._use_threads(self._num_cores)
            yield granted
        finally:
            if granted:
                self._give_back(self.num_lanes)

    def submit(self, work: Work, *, bulk: bool = False) -> None:
        """Wait for a lane, then return while `work` runs there."""
        kind = "bulk" if bulk else "interactive"
        with self._changed:
            self._waiting[kind] += 1
            self._changed.wait_for(lambda: self._free and bulk == self._bulk_is_next())
            self._waiting[kind] -= 1
            self._free -= 1
            self._since_bulk = 0 if bulk else self._since_bulk + 1
        self._pool.submit(self._run, work)

    def close(self) -> None:
        """Return when all lanes have finished."""
        self._pool.shutdown()

    def _bulk_is_next(self) -> bool:
        overdue = self._since_bulk >= INTERACTIVE_BEFORE_BULK * self.num_lanes
        return bool(self._waiting["bulk"]) and (overdue or not self._waiting["interactive"])

    def _run(self, work: Work) -> None:
        try:
            self._use_threads(self._num_cores // self.num_lanes)
            work()
        finally:
            self._give_back(1)

    def _give_back(self, num_lanes: int) -> None:
        with self._changed:
            self._free += num_lanes
            self._changed.notify_all()

    def _use_threads(self, count: int) -> None:
        # PyTorch keeps the number per calling thread, but a thread's first use copies the last one set anywhere.
        if self._on_cpu and getattr(self._thread, "count", None) != count:
            import torch

            torch.set_num_threads(count)
            self._thread.count = count
