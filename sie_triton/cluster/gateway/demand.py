"""Demand for workers that are not there: a scaling rule starts a pool from zero by it."""

from collections.abc import Callable, Set
from time import monotonic

# A pool and a kind of machine; one of them is empty.
Wish = tuple[str, str]


class Demand:
    """Pools and kinds of machines that requests have asked for lately, and that have no worker.

    A request counts for `demand_s` seconds. Belongs to one event loop.

    >>> now = [0.0]
    >>> demand = Demand(120.0, lambda: now[0])
    >>> demand.note("large", "")
    >>> demand.now()
    {('large', '')}
    >>> now[0] = 120.0
    >>> demand.now()
    set()
    """

    def __init__(self, demand_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._demand_s, self._clock = demand_s, clock
        self._noted: dict[Wish, float] = {}

    def note(self, pool: str, profile: str) -> None:
        """Take a request. Callers give only names that the settings have, so that clients cannot make up any."""
        self._noted[pool, profile] = self._clock()

    def now(self) -> Set[Wish]:
        since = self._clock() - self._demand_s
        return {wish for wish, noted_at in self._noted.items() if noted_at > since}
