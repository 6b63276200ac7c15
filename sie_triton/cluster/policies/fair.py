"""Turns of tenants: one that sends much waits for itself, not before the others."""

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """A line for each tenant; the lines are served in turns, each in its order.

    >>> turns = Turns[str]()
    >>> for name in ("a1", "a2", "a3"): turns.add("a", name)
    >>> turns.add("b", "b1")
    >>> [turns.take() for _ in range(len(turns))]
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[Item]] = {}
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, tenant: str, item: Item) -> None:
        self._lines.setdefault(tenant, deque()).append(item)
        self._num += 1

    def take(self) -> Item:
        """Take the next item; IndexError if there is none."""
        if not self._num:
            raise IndexError("nobody waits")
        tenant, line = next(iter(self._lines.items()))
        del self._lines[tenant]
        item = line.popleft()
        if line:
            self._lines[tenant] = line  # at the end of the lines
        self._num -= 1
        return item

    def remove(self, tenant: str, item: Item) -> None:
        """Remove an item that waits no longer; nothing if it does not wait."""
        line = self._lines.get(tenant, deque())
        if item in line:
            line.remove(item)
            self._num -= 1
            if not line:
                del self._lines[tenant]

    def ahead(self, tenant: str) -> int:
        """Return how many items are served before the next one of a tenant.

        >>> turns = Turns[str]()
        >>> for name in ("a1", "a2", "a3"): turns.add("a", name)
        >>> turns.ahead("a"), turns.ahead("b")
        (3, 1)
        """
        own = len(self._lines.get(tenant, ()))
        return own + sum(min(len(line), own + 1) for name, line in self._lines.items() if name != tenant)


class Tenants:
    """Detects that requests of several tenants come: for `several_s` after the last change between them.

    >>> now = [0.0]
    >>> tenants = Tenants(lambda: now[0])
    >>> [tenants.note(name) for name in ("a", "a", "b", "a")], tenants.are_several
    ([False, False, True, False], True)
    >>> now[0] = 5.0
    >>> tenants.are_several
    False
    """

    def __init__(self, clock: Callable[[], float] = monotonic, several_s: float = 5.0) -> None:
        self._clock, self._several_s = clock, several_s
        self._latest: str | None = None
        self._several_until = 0.0

    @property
    def are_several(self) -> bool:
        return self._clock() < self._several_until

    def note(self, tenant: str) -> bool:
        """Take the tenant of a request; return True if it is the first of another one."""
        is_other, were_several = self._latest not in (None, tenant), self.are_several
        if is_other:
            self._several_until = self._clock() + self._several_s
        self._latest = tenant
        return is_other and not were_several


def window(limits: int, num_gateways: int, backlog_share: float = 1.25) -> int:
    """Return how many requests for a model a gateway may have in the queue: its share of what workers may have open.

    A little more waits in the queue, so that a worker never waits for a gateway.

    >>> window(limits=64, num_gateways=1), window(limits=64, num_gateways=3), window(limits=0, num_gateways=2)
    (80, 26, 4)
    """
    return max(4, int(limits * backlog_share / max(1, num_gateways)))


def expected_s(ended: Sequence[float], now: float, num_ahead: int, min_rated: int) -> float:
    """Return how long a request will wait behind `num_ahead` others, in seconds, by the times of the latest answers.

    It is 0 while fewer than `min_rated` answers are known.

    >>> expected_s([float(second) for second in range(40)], 40.0, 3, min_rated=20), expected_s([1.0], 2.0, 9, 20)
    (3.0, 0.0)
    """
    return (now - ended[0]) / len(ended) * num_ahead if len(ended) >= min_rated else 0.0
