"""Sub-batches side by side: on a CPU, two with half the threads each beat one with all of them.

Threads of one forward pass wait for each other at every layer, also for one that was interrupted;
forward passes beside each other do not. Measured in ARCHITECTURE.md.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

MAX_CPU_LANES = 2

Work = TypeVar("Work")
Result = TypeVar("Result")


class Lanes:
    """Runs up to `count` pieces of work at once; a single piece gets all threads."""

    def __init__(self, device: str) -> None:
        num_cores = len(os.sched_getaffinity(0))
        self.count = min(MAX_CPU_LANES, num_cores) if device == "cpu" else 1
        self._num_cores = num_cores
        self._on_cpu = device == "cpu"
        self._thread = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[Work], Result], pieces: Sequence[Work]) -> list[Result]:
        """The results in order; `pieces` are at most `count`."""
        if len(pieces) < 2:
            self._use_threads(self._num_cores)
            return [work(piece) for piece in pieces]
        if self._pool is None:
            share = self._num_cores // self.count
            self._pool = ThreadPoolExecutor(self.count, "lane", self._use_threads, (share,))
        return list(self._pool.map(work, pieces))

    def waves(self, pieces: Iterable[Work]) -> Iterator[list[Work]]:
        """What runs at once, one wave after another."""
        rest = iter(pieces)
        while wave := list(islice(rest, self.count)):
            yield wave

    def _use_threads(self, count: int) -> None:
        # PyTorch keeps the number per calling thread, but a thread's first use copies the last one set anywhere.
        if self._on_cpu and getattr(self._thread, "count", None) != count:
            import torch

            torch.set_num_threads(count)
            self._thread.count = count
