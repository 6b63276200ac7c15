"""Pools that clients lease: workers of another pool, for their requests alone, as long as they renew the lease."""

import time
from typing import Any

from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue

from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.connection import open_bucket, told
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.leases import read_lease
from sie_triton.cluster.messages import Lease
from sie_triton.cluster.policies.leases import TTL_S, is_over
from sie_triton.doors.failures import Failure
from sie_triton.settings import Settings

# Leases at a time.
MAX_LEASES = 100

MAX_ATTEMPTS = 10


class Leases:
    """Belongs to one event loop. All gateways see and change the same leases.

    Raises Failure for a change that cannot be made.
    """

    def __init__(self, settings: Settings, js: JetStreamContext, pools: Pools) -> None:
        self._settings, self._js, self._pools = settings, js, pools
        self.bucket = Bucket(self._opened, read_lease)
        pools.leases = self.bucket.values

    async def _opened(self) -> KeyValue:
        # The bucket forgets what has not been renewed.
        return await open_bucket(self._js, subjects.LEASES, self._settings, ttl=TTL_S)

    def all(self) -> list[Lease]:
        now = time.time()
        return sorted((each for each in self.bucket.values.values() if not is_over(each, now)), key=lambda e: e.name)

    def find(self, name: str) -> Lease:
        found = self.bucket.values.get(name)
        if found is None or is_over(found, time.time()):
            raise Failure("no_route", f"pool {name[:64]} is not leased; POST /v1/pools leases it")
        return found

    async def put(self, lease: Lease) -> Lease:
        """Make a lease, or replace and renew the one of this name."""
        present = {each.name: each for each in self.all()}
        if lease.name not in present:
            if self._pools.workers.alive(lease.name) or lease.name in (lease.source, self._settings.pool):
                raise Failure("input", f"name: {lease.name} is a pool with workers of its own", field="name")
            if len(present) >= MAX_LEASES:
                raise Failure("busy", f"{MAX_LEASES} pools are leased, the limit; delete one", retry_after_s=60)
        at = present[lease.name].at if lease.name in present else lease.at
        return await self._write(lease.renewed(at=at))

    async def renew(self, name: str) -> Lease:
        return await self._write(self.find(name).renewed())

    async def end(self, name: str) -> None:
        self.find(name)
        await self._written(name, b"")

    async def _write(self, lease: Lease) -> Lease:
        await self._written(lease.name, lease.packed())
        return lease

    async def _written(self, name: str, value: bytes) -> None:
        for _ in range(MAX_ATTEMPTS):
            try:
                await self.bucket.write(name, value)
            except Conflict:
                continue
            except (NatsError, TimeoutError) as exc:
                raise Failure("unreachable", f"the queue is away ({told(exc)}); retry", retry_after_s=1) from exc
            return
        raise Failure("busy", "other gateways change the same pool; retry", retry_after_s=1)

    def described(self, lease: Lease) -> dict[str, Any]:
        """Return a lease in the format of SIE's clients."""
        members = [each for each in self._pools.workers.alive(lease.name) if each.is_ready]
        return {
            "name": lease.name,
            "spec": {
                "name": lease.name,
                "queue_pool": lease.source,
                "gpus": lease.gpus,
                "gpu_caps": lease.caps,
                "bundle": self._settings.bundle,
                "minimum_worker_count": lease.minimum,
            },
            "status": {
                "state": "active" if self._pools.has_all(lease) else "pending",
                "assigned_workers": [
                    {"name": each.worker, "url": "", "gpu": each.profile, "bundle": self._settings.bundle}
                    for each in members
                ],
                "created_at": lease.at,
                "last_renewed": lease.renewed_at,
            },
        }
