"""Samples that are taken all the time beside a run."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def sampled(sample: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Call `sample` at intervals, on a thread of its own; raise what ended it early."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(interval_s):
            sample()

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch)
        try:
            yield
        finally:
            stopped.set()
    watching.result()
