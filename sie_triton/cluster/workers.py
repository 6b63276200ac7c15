"""The workers of all pools, as their heartbeats tell."""

from collections.abc import Callable, Iterable
from time import monotonic

from nats.aio.msg import Msg

from sie_triton.cluster.messages import Health, Malformed

# Missing heartbeats after which a worker counts as gone, and the usual interval of heartbeats, in seconds.
MAX_MISSING, INTERVAL_S = 3, 1.0

# Workers of one cluster. Further ones are not listened to.
MAX_WORKERS = 10_000


class Workers:
    """Latest heartbeat of each worker. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], tuple[float, Health]] = {}

    async def hear(self, message: Msg) -> None:
        """Take a heartbeat."""
        try:
            health, _ = Health.read(message.data)
        except Malformed:
            return
        self.take(health)

    def take(self, health: Health) -> None:
        key = health.pool, health.worker
        if key in self._found or len(self._found) < MAX_WORKERS:
            self._found[key] = self._clock(), health

    @property
    def stale_s(self) -> float:
        """Time in which each worker tells of itself, in seconds, as far as the slowest one is known."""
        return max([INTERVAL_S * MAX_MISSING, *map(_stale_s, self.all())])

    def alive(self, pool: str) -> list[Health]:
        """Return the workers of a pool that are not gone, sorted by name."""
        return sorted((each for each in self.all() if each.pool == pool), key=lambda each: each.worker)

    def all(self) -> Iterable[Health]:
        now = self._clock()
        self._found = {key: (at, each) for key, (at, each) in self._found.items() if now - at <= _stale_s(each)}
        return [health for _, health in self._found.values()]

    def pools(self) -> list[str]:
        return sorted({each.pool for each in self.all()})


def _stale_s(health: Health) -> float:
    """Return the age of a worker's heartbeat at which the worker counts as gone, in seconds."""
    return health.interval_s * MAX_MISSING
