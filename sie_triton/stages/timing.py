"""When an instance was busy: what a request's wait is split by."""

from collections import deque
from collections.abc import Iterable


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
