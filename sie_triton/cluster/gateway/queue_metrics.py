"""Publishes as metrics what a gateway knows."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from nats.errors import Error as NatsError
from nats.js.api import StreamInfo
from nats.js.client import JetStreamContext

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.limits import GatewayLimits


class QueueMetrics:
    """Belongs to one event loop."""

    def __init__(
        self, js: JetStreamContext, pools: Pools, leases: Leases, limits: GatewayLimits = GatewayLimits()
    ) -> None:
        self._js, self._pools, self._leases, self._limits = js, pools, leases, limits

    def show(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """Publish what is known already; `waiting`: requests that wait for a place in the queue, by pool and model."""
        zeros: dict[metrics.Labels, int] = {(pool,): 0 for pool in self._pools.known()}
        by_pool, leased, ready = Counter(zeros), Counter[metrics.Labels](), Counter(zeros)
        for (pool, _), num in waiting.items():
            by_pool[pool,] += num
        for lease in self._leases.all():
            leased.update({(lease.source, profile): num for profile, num in lease.gpus.items()})
        for worker in self._pools.workers.all():
            ready[worker.pool,] += worker.is_ready
        metrics.WAITING.show(by_pool)
        metrics.LEASED.show(leased)
        metrics.READY.show(ready)
        demand: dict[metrics.Labels, int] = {(pool, ""): 0 for pool in self._pools.known()}
        metrics.DEMAND.show(demand | dict.fromkeys(self._pools.demand.now(), 1))

    async def keep_measuring(self) -> None:
        """Publish how many requests each pool's stream has, and how full it is, for ever."""
        while True:
            depths, fills = dict[metrics.Labels, float](), dict[metrics.Labels, float]()
            for pool in self._pools.known():
                metrics.REJECTED.labels(pool)  # a rate needs the 0 before the first refusal
                metrics.UNSTORED.labels(pool)
                with suppress(NatsError, TimeoutError):
                    found = await self._js.stream_info(subjects.stream(pool))
                    depths[pool,], fills[pool,] = found.state.messages, _fill(found)
            metrics.DEPTH.show(depths)
            metrics.FILL.show(fills)
            await asyncio.sleep(self._limits.measure_s)


def _fill(stream: StreamInfo) -> float:
    """Return the larger of a stream's shares of its limits."""
    used, limits = stream.state, stream.config
    pairs = (used.messages, limits.max_msgs), (used.bytes, limits.max_bytes)
    return max((number / limit for number, limit in pairs if limit and limit > 0), default=0.0)
