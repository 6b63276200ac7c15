"""Where a request's time went. Stages hand monotonic nanoseconds along in the tensor `stamps`.

    after preprocess   [arrived, preprocessed, ticket, seal]
    after inference    [arrived, preprocessed, queue, batch_wait, inference, seal]

Of these, queue, batch_wait and inference are durations; ticket and seal are numbers, see limit.py and seal.py. queue
is the wait in which the instance was busy with other work, batch_wait the wait in which it was idle. What is missing
in the sum of the parts was spent on the way between the stages.
"""

from collections import deque
from collections.abc import Iterable
from time import monotonic_ns

import numpy as np
import numpy.typing as npt

from sie_triton.contract import STAMPS
from sie_triton.errors import InputError
from sie_triton.stages.request import Request, vector

Stamps = npt.NDArray[np.int64]

PREPROCESS_STAMPS = 4
INFERENCE_STAMPS = 6


def read_stamps(request: Request, count: int, names: str) -> Stamps:
    """What the step before sent as `stamps`; InputError unless they are `count` integers."""
    stamps = vector(request, STAMPS.name, np.int64)
    if stamps.shape != (count,):
        raise InputError(f"stamps: must be {count} integers ({names})")
    return stamps


class BusyLog:
    """When an instance was busy, newest last; forgets all but the latest intervals."""

    def __init__(self, max_intervals: int = 1024) -> None:
        self._intervals: deque[tuple[int, int]] = deque(maxlen=max_intervals)

    def add(self, start_ns: int, end_ns: int) -> None:
        self._intervals.append((start_ns, end_ns))

    def idle_ns(self, since_ns: int, until_ns: int) -> int:
        """How long the instance was idle in that span; what the log has forgotten counts as busy."""
        idle, upper = 0, until_ns
        for start, end in reversed(self._intervals):
            if end <= since_ns:
                return idle + max(0, upper - since_ns)
            idle += max(0, upper - end)
            upper = min(upper, start)
        if len(self._intervals) == self._intervals.maxlen:
            return idle
        return idle + max(0, upper - since_ns)


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of some (start, end) intervals.

    >>> covered_ns([(0, 4), (2, 6), (10, 11)])
    7
    """
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def timing_ms(stamps: Stamps, started_ns: int) -> npt.NDArray[np.float32]:
    """The `timing_ms` output, float32 [6], for a postprocess that began at `started_ns`."""
    arrived, preprocessed, queue, batch_wait, inference, _ = stamps.tolist()
    now = monotonic_ns()
    parts = [queue, preprocessed - arrived, batch_wait, inference, now - started_ns, now - arrived]
    return np.array(parts, np.float64).astype(np.float32) / np.float32(1e6)
