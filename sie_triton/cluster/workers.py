"""The workers of all pools, as their heartbeats tell."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic

from nats.aio.msg import Msg

from sie_triton.cluster.limits import ClusterLimits
from sie_triton.cluster.messages import Health, Malformed


class Workers:
    """Latest heartbeat of each worker. Belongs to one event loop."""

    def __init__(self, limits: ClusterLimits = ClusterLimits(), clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._found: dict[tuple[str, str], tuple[float, Health]] = {}

    async def hear(self, message: Msg) -> None:
        """Take a heartbeat."""
        with suppress(Malformed):
            self.take(Health.read(message.data)[0])

    def take(self, health: Health) -> None:
        key = health.pool, health.worker
        if key in self._found or len(self._found) < self._limits.max_workers:
            self._found[key] = self._clock(), health

    @property
    def stale_s(self) -> float:
        """Time in which each worker tells of itself, in seconds, as far as the slowest one is known."""
        usual_s = self._limits.heartbeat_s * self._limits.max_missing_heartbeats
        return max([usual_s, *map(self._stale_s, self.all())])

    def alive(self, pool: str) -> list[Health]:
        """Return the workers of a pool that are not gone, sorted by name."""
        return sorted((each for each in self.all() if each.pool == pool), key=lambda each: each.worker)

    def all(self) -> Iterable[Health]:
        now = self._clock()
        self._found = {key: (at, each) for key, (at, each) in self._found.items() if now - at <= self._stale_s(each)}
        return [health for _, health in self._found.values()]

    def pools(self) -> list[str]:
        return sorted({each.pool for each in self.all()})

    def _stale_s(self, health: Health) -> float:
        """Return the age of a worker's heartbeat at which the worker counts as gone, in seconds."""
        return health.interval_s * self._limits.max_missing_heartbeats
