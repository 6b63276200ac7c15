"""Metrics of a gateway, for scaling rules and dashboards; doors/counts.py adds up those of its processes."""

import asyncio
from collections import Counter as Counts
from collections.abc import Mapping
from contextlib import suppress

from nats.errors import Error as NatsError
from nats.js.api import StreamInfo
from nats.js.client import JetStreamContext
from prometheus_client import Counter, Gauge

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.limits import GatewayLimits

Labels = tuple[str, ...]


class Values:
    """A gauge for each of a changing set of labels: those that are no longer given become 0."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: set[Labels] = set()

    def show(self, values: Mapping[Labels, float]) -> None:
        for labels in self._shown - values.keys():
            self._gauge.labels(*labels).set(0)
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        self._shown |= values.keys()


def _gauge(name: str, text: str, labels: list[str], mode: str = "livemax") -> Values:
    return Values(Gauge(f"sie_gateway_{name}", text, labels, registry=None, multiprocess_mode=mode))  # type: ignore[arg-type]


# What all gateways see alike is the largest value of their processes.
DEPTH = _gauge("worker_queue_depth", "Requests of a pool in the queue, those at workers included.", ["pool"])
FILL = _gauge("queue_fill_ratio", "Messages or bytes of a pool's queue, by their limit.", ["pool"])
DEMAND = _gauge(
    "pending_demand", "1 if a pool or a kind of machine was asked for lately, and has no worker.", ["pool", "profile"]
)
LEASED = _gauge("active_lease_gpus", "Workers of a pool that leases ask for.", ["pool", "profile"])
READY = _gauge("ready_workers", "Workers of a pool that are ready.", ["pool"])

WAITING = _gauge("waiting_requests", "Requests that wait at gateways for a place in the queue.", ["pool"], "livesum")

REJECTED = Counter(
    "sie_gateway_rejected_requests",
    "Requests that were refused because too many wait, or the queue is full or too slow.",
    ["pool"],
    registry=None,
)

UNSTORED = Counter(
    "sie_gateway_unstored_requests",
    "Attempts to store a request that the queue did not confirm, for another reason than that it is full.",
    ["pool"],
    registry=None,
)


class QueueMetrics:
    """Publishes what a gateway knows. Belongs to one event loop."""

    def __init__(
        self, js: JetStreamContext, pools: Pools, leases: Leases, limits: GatewayLimits = GatewayLimits()
    ) -> None:
        self._js, self._pools, self._leases, self._limits = js, pools, leases, limits

    def show(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """Publish what is known already; `waiting`: requests that wait for a place in the queue, by pool and model."""
        zeros: dict[Labels, int] = {(pool,): 0 for pool in self._pools.known()}
        by_pool, leased, ready = Counts(zeros), Counts[Labels](), Counts(zeros)
        for (pool, _), num in waiting.items():
            by_pool[pool,] += num
        for lease in self._leases.all():
            leased.update({(lease.source, profile): num for profile, num in lease.gpus.items()})
        for worker in self._pools.workers.all():
            ready[worker.pool,] += worker.is_ready
        WAITING.show(by_pool)
        LEASED.show(leased)
        READY.show(ready)
        demand: dict[Labels, int] = {(pool, ""): 0 for pool in self._pools.known()}
        DEMAND.show(demand | dict.fromkeys(self._pools.demand, 1))

    async def keep_measuring(self) -> None:
        """Publish how many requests each pool's stream has, and how full it is, for ever."""
        while True:
            depths, fills = dict[Labels, float](), dict[Labels, float]()
            for pool in self._pools.known():
                REJECTED.labels(pool)  # a rate needs the 0 before the first refusal
                UNSTORED.labels(pool)
                with suppress(NatsError, TimeoutError):
                    found = await self._js.stream_info(subjects.stream(pool))
                    depths[pool,], fills[pool,] = found.state.messages, _fill(found)
            DEPTH.show(depths)
            FILL.show(fills)
            await asyncio.sleep(self._limits.measure_s)


def _fill(stream: StreamInfo) -> float:
    """Return the larger of a stream's shares of its limits."""
    used, limits = stream.state, stream.config
    pairs = (used.messages, limits.max_msgs), (used.bytes, limits.max_bytes)
    return max((number / limit for number, limit in pairs if limit and limit > 0), default=0.0)
