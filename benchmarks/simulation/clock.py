"""The clock of a simulation: events in the order of their times. All times are in seconds from its start."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Action = Callable[..., object]


class Clock:
    """Calls actions at their times; those of the same time in the order in which they were added.

    >>> clock, seen = Clock(), []
    >>> clock.after(2.0, seen.append, "b")
    >>> clock.after(1.0, seen.append, "a")
    >>> clock.run(until=1.5)
    >>> seen, clock.now
    (['a'], 1.5)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._numbers = count()

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        """Call an action in so many seconds."""
        heappush(self._events, (self.now + max(0.0, seconds), next(self._numbers), action, arguments))

    def each(self, seconds: float, action: Action) -> None:
        """Call an action now, and again after each interval of so many seconds."""
        action()
        self.after(seconds, self.each, seconds, action)

    def run(self, until: float) -> None:
        """Call all actions until a time, which is `now` afterwards."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action, arguments = heappop(events)
            action(*arguments)
        self.now = until
