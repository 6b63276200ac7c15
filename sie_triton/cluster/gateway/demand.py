"""Demand for workers that are not there: a scaling rule starts a pool from zero by it."""

from collections.abc import Callable, Set
from time import monotonic

# Time for which a request counts as demand, in seconds: longer than its client waits before it asks again.
DEMAND_S = 120.0

# A pool and a kind of machine; one of them is empty.
Wish = tuple[str, str]


class Demand:
    """Pools and kinds of machines that requests have asked for lately, and that have no worker.

    Belongs to one event loop. `clock` is in seconds.

    >>> now = [0.0]
    >>> demand = Demand(lambda: now[0])
    >>> demand.note("large", "")
    >>> demand.now()
    {('large', '')}
    >>> now[0] = DEMAND_S
    >>> demand.now()
    set()
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._noted: dict[Wish, float] = {}

    def note(self, pool: str, profile: str) -> None:
        """Take a request. Callers give only names that the settings have, so that clients cannot make up any."""
        self._noted[pool, profile] = self._clock()

    def now(self) -> Set[Wish]:
        since = self._clock() - DEMAND_S
        return {wish for wish, noted_at in self._noted.items() if noted_at > since}
