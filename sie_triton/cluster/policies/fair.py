"""Turns of tenants: one that sends much waits for itself, not before the others."""

from collections import Counter, deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """A line for each tenant, before a queue; the lines are served in turns, each in its order.

    >>> turns = Turns[str]()
    >>> for name in ("a1", "a2", "a3"): turns.add("a", name)
    >>> turns.add("b", "b1")
    >>> [turns.take() for _ in range(len(turns))]
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[Item]] = {}
        self._num = 0
        self._sent = Counter[str]()  # requests in the queue, by tenant
        self.num_sent = 0

    def __len__(self) -> int:
        return self._num

    def may_enter(self, tenant: str, window: int, min_of_tenant: int) -> bool:
        """Return whether the next item of a tenant may go into the queue now, which takes `window` items.

        A tenant with few there waits for no others, up to twice as many in all: a flood leaves the queue in bursts.

        >>> turns = Turns[str]()
        >>> for _ in range(4): turns.enter("a")
        >>> [turns.may_enter("a", 4, 2), turns.may_enter("b", 4, 2), turns.may_enter("b", 2, 2)]
        [False, True, False]
        """
        own = self._sent[tenant]
        if own < min_of_tenant and own < self.num_sent and tenant not in self._lines:
            return self.num_sent < 2 * window
        return not self._num and self.num_sent < window

    def enter(self, tenant: str) -> None:
        self.num_sent += 1
        self._sent[tenant] += 1

    def leave(self, tenant: str) -> None:
        self.num_sent -= 1
        self._sent[tenant] -= 1
        if not self._sent[tenant]:
            del self._sent[tenant]

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


class Durations:
    """Durations of the latest requests for a model, each with its size and the number of requests ahead of it.

    At most `max_rated` are kept; an expectation needs `min_rated` of them.

    >>> durations = Durations(max_rated=32, min_rated=8)
    >>> for number in range(40): durations.add(num_ahead=number, num_bytes=100, seconds=1.0 + number)
    >>> durations.expected_s(50, 100), durations.expected_s(1000, 100), durations.expected_s(50, 10)
    (51.0, 0.0, 0.0)
    """

    def __init__(self, max_rated: int, min_rated: int) -> None:
        self._latest: deque[tuple[int, int, float]] = deque(maxlen=max_rated)
        self._min_rated = min_rated

    def add(self, num_ahead: int, num_bytes: int, seconds: float) -> None:
        self._latest.append((num_ahead, num_bytes, seconds))

    def expected_s(self, num_ahead: int, num_bytes: int) -> float:
        """Return how long a request behind so many others will take, in seconds; 0 while that is unknown.

        Only requests count with at least a quarter as many ahead, because few that share a call may take as long as
        many, and of at most four times the size, because small ones pass large ones. The slower ones decide.
        """
        of_each = sorted(
            seconds / (ahead + 1)
            for ahead, size, seconds in self._latest
            if 4 * ahead >= num_ahead and size <= 4 * num_bytes
        )
        return of_each[len(of_each) * 3 // 4] * (num_ahead + 1) if len(of_each) >= self._min_rated else 0.0
