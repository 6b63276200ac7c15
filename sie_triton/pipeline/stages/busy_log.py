"""Busy times of an instance, by which the wait of a request is split."""

from collections import deque
from collections.abc import Iterable


class BusyLog:
    """Busy intervals of an instance, newest last. Only the latest `max_intervals` are kept."""

    def __init__(self, max_intervals: int = 1024) -> None:
        self._intervals: deque[tuple[int, int]] = deque(maxlen=max_intervals)

    def add(self, start_ns: int, end_ns: int) -> None:
        self._intervals.append((start_ns, end_ns))

    def idle_ns(self, since_ns: int, until_ns: int) -> int:
        """Return how long the instance was idle in a time span. Times before the log's beginning count as busy."""
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
    """Return the length of the union of (start, end) intervals.

    >>> covered_ns([(0, 4), (2, 6), (10, 11)])
    7
    """
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
