"""Publishes as metrics what a gateway knows."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.pools import Pools

# Interval of looks at the length of the queue, in seconds.
MEASURE_S = 5.0


class QueueMetrics:
    """Belongs to one event loop. `own` is the pool of requests that ask for none."""

    def __init__(self, js: JetStreamContext, pools: Pools, leases: Leases, own: str) -> None:
        self._js, self._pools, self._leases, self._own = js, pools, leases, own

    def show(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """Publish what is known already; `waiting`: requests that wait for a place in the queue, by pool and model."""
        by_pool, leased, ready = Counter[metrics.Labels](), Counter[metrics.Labels](), Counter[metrics.Labels]()
        for (pool, _), num in waiting.items():
            by_pool[pool,] += num
        for lease in self._leases.all():
            leased.update({(lease.source, profile): num for profile, num in lease.gpus.items()})
        for worker in self._pools.workers.all():
            ready[worker.pool,] += worker.is_ready
        metrics.WAITING.show(by_pool)
        metrics.LEASED.show(leased)
        metrics.READY.show(ready)
        metrics.DEMAND.show(dict.fromkeys(self._pools.demand.now(), 1))

    async def keep_measuring(self) -> None:
        """Publish how many requests each pool's stream has, for ever."""
        while True:
            depths: dict[metrics.Labels, int] = {}
            for pool in {self._own, *self._pools.workers.pools()}:
                with suppress(NatsError, TimeoutError):
                    found = await self._js.stream_info(subjects.stream(pool))
                    depths[pool,] = found.state.messages
            metrics.DEPTH.show(depths)
            await asyncio.sleep(MEASURE_S)
