"""The workers of all pools, as their heartbeats tell."""

from collections.abc import Callable, Iterable
from time import monotonic

from nats.aio.msg import Msg

from sie_triton.cluster.messages import Health, Malformed

# Missing heartbeats after which a worker counts as gone.
MAX_MISSING = 3

# Workers of one cluster. Further ones are not listened to.
MAX_WORKERS = 10_000


class Workers:
    """Latest heartbeat of each worker. Belongs to one event loop. `stale_s`: age in seconds that means it is gone."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._stale_s = interval_s * MAX_MISSING
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

    def alive(self, pool: str) -> list[Health]:
        """Return the workers of a pool that are not gone, sorted by name."""
        return sorted((each for each in self.all() if each.pool == pool), key=lambda each: each.worker)

    def all(self) -> Iterable[Health]:
        now = self._clock()
        self._found = {key: each for key, each in self._found.items() if now - each[0] <= self._stale_s}
        return [health for _, health in self._found.values()]

    def pools(self) -> list[str]:
        return sorted({each.pool for each in self.all()})
