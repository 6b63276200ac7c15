"""Compute the number of workers of a pool, as KEDA and the HorizontalPodAutoscaler of Kubernetes do.

The Helm chart gives them the same constants; the simulator calls these functions.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil

# Metric values for which one worker is enough.
QUEUE_DEPTH_PER_WORKER, DEMAND_PER_WORKER, LEASED_PER_WORKER, REJECTED_PER_WORKER = 10.0, 1.0, 1.0, 1.0

# Queue depth up to which a pool without workers stays without.
QUEUE_DEPTH_ACTIVATION = 2.0

# Interval at which the metrics are read, in seconds.
POLL_S = 15.0

# Workers that may be added in POLL_S: this share of the present ones, or this number if it is more.
MAX_GROWTH_RATIO, MAX_GROWTH = 1.0, 4

# The largest number that was wanted within so many seconds is kept.
STABILISATION_S = 300.0

# Time without an active metric after which the last worker ends, in seconds.
COOLDOWN_S = 900.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Metrics of a pool.

    `queue_depth` counts the requests that wait or run, `pending` is 1 while requests want a pool without workers,
    `leased` counts the workers that clients lease, and `rejected_per_s` the requests that are refused per second.
    """

    queue_depth: float = 0.0
    pending: float = 0.0
    leased: float = 0.0
    rejected_per_s: float = 0.0

    @property
    def is_active(self) -> bool:
        """True if a pool without workers needs one.

        >>> Demand(queue_depth=2).is_active, Demand(queue_depth=3).is_active, Demand(pending=1).is_active
        (False, True, True)
        """
        return self.queue_depth > QUEUE_DEPTH_ACTIVATION or max(self.pending, self.leased, self.rejected_per_s) > 0


def wanted(demand: Demand) -> int:
    """Return the number of workers that the metrics ask for: the largest of value by threshold, rounded up.

    >>> wanted(Demand(queue_depth=41)), wanted(Demand(queue_depth=41, leased=7)), wanted(Demand())
    (5, 7, 0)
    """
    return max(
        ceil(demand.queue_depth / QUEUE_DEPTH_PER_WORKER),
        ceil(demand.pending / DEMAND_PER_WORKER),
        ceil(demand.leased / LEASED_PER_WORKER),
        ceil(demand.rejected_per_s / REJECTED_PER_WORKER),
    )


class Scaling:
    """The number of workers over time. `min_workers` and `max_workers` are its bounds.

    >>> scaling = Scaling(min_workers=0, max_workers=20)
    >>> num, seen = 0, []
    >>> for poll in range(5):
    ...     num = scaling.next(poll * POLL_S, Demand(queue_depth=500), num)
    ...     seen.append(num)
    >>> seen
    [1, 5, 10, 20, 20]
    >>> [scaling.next(after_s, Demand(), 20) for after_s in (300, 420)]
    [20, 1]
    >>> scaling.next(60 + COOLDOWN_S, Demand(), 1)
    0
    """

    def __init__(self, min_workers: int, max_workers: int) -> None:
        self._min, self._max = min_workers, max_workers
        self._wanted: deque[tuple[float, int]] = deque()
        self._active_at = float("-inf")

    def next(self, now: float, demand: Demand, num_workers: int) -> int:
        """Return how many workers the pool should have; call it each POLL_S. `now` is in seconds of any clock."""
        if demand.is_active:
            self._active_at = now
        if not num_workers:
            return min(self._max, max(self._min, 1 if demand.is_active else 0))
        self._wanted.append((now, self._bounded(wanted(demand))))
        while self._wanted[0][0] <= now - STABILISATION_S:
            self._wanted.popleft()
        if not self._min and not demand.is_active and now - self._active_at >= COOLDOWN_S:
            self._wanted.clear()
            return 0
        most = max(num for _, num in self._wanted)
        growth = max(MAX_GROWTH, int(num_workers * MAX_GROWTH_RATIO))
        now_wanted = self._wanted[-1][1]
        if now_wanted > num_workers:
            return min(now_wanted, num_workers + growth)
        return min(num_workers, most)

    def _bounded(self, num: int) -> int:
        """Return a number of workers within the bounds; only the cooldown ends the last one."""
        return min(self._max, max(1, self._min, num))
