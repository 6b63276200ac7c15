"""Pools that clients lease: workers of another pool, for their requests alone, as long as they renew the lease."""

import time
from collections.abc import Callable
from typing import Any

from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.connection import told
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Lease, read_lease
from sie_triton.cluster.policies.leases import is_over
from sie_triton.doors.failures import Failure
from sie_triton.settings import Settings


class Leases:
    """Belongs to one event loop. All gateways see and change the same leases.

    Raises Failure for a change that cannot be made.
    """

    def __init__(
        self, settings: Settings, js: JetStreamContext, pools: Pools, limits: GatewayLimits = GatewayLimits()
    ) -> None:
        self._settings, self._pools, self._limits = settings, pools, limits
        self.bucket = Bucket(lambda: js.key_value(subjects.LEASES), read_lease, limits=limits)
        pools.leases = self.bucket.values

    def all(self) -> list[Lease]:
        return sorted((each for each in self.bucket.values.values() if not self._is_over(each)), key=lambda e: e.name)

    def _is_over(self, lease: Lease, ago_s: float = 0.0) -> bool:
        """Return True if a lease has ended, `ago_s` seconds ago or earlier."""
        return is_over(lease, time.time() - ago_s, self._limits.lease_ttl_s)

    def forget_old(self) -> None:
        """Forget the leases that ended long ago: the queue's bucket drops them without telling."""
        kept_s = self._limits.lease_kept_s
        for name in [name for name, each in self.bucket.values.items() if self._is_over(each, kept_s)]:
            self.bucket.forget(name)

    def find(self, name: str) -> Lease:
        found = self.bucket.values.get(name)
        if found is None or self._is_over(found):
            raise Failure("no_route", f"pool {name[:64]} is not leased; POST /v1/pools leases it")
        return found

    async def put(self, lease: Lease) -> Lease:
        """Make a lease, or replace and renew the one of this name."""
        self._check_is_free(lease)

        def change() -> Lease:
            present = next((each for each in self.all() if each.name == lease.name), lease)
            return lease.renewed(at=present.at)

        return await self._changed(lease.name, change)

    async def renew(self, name: str) -> Lease:
        return await self._changed(name, lambda: self.find(name).renewed())

    async def end(self, name: str) -> None:
        await self._changed(name, lambda: self.find(name), is_end=True)

    def _check_is_free(self, lease: Lease) -> None:
        """Raise Failure if a new lease cannot have its name, or there are too many."""
        present = {each.name for each in self.all()}
        if lease.name in present:
            return
        # Names of pools that differ in upper and lower case only are for different requests, but easily confused.
        same = {each for each in (*self._pools.known(), lease.source) if each.lower() == lease.name}
        has_workers, was_leased = bool(self._pools.workers.alive(lease.name)), self.bucket.revision(lease.name) > 0
        if same - ({lease.name} if has_workers and was_leased else set()):
            raise Failure("input", f"name: {min(same)} is a pool of its own; choose another name", field="name")
        if has_workers:
            message = f"the workers of the lease of pool {lease.name} that has ended are leaving it; retry"
            raise Failure("busy", message, retry_after_s=5)
        if len(present) >= self._limits.max_leases:
            raise Failure("busy", f"{len(present)} pools are leased, the limit; delete one", retry_after_s=60)

    async def _changed(self, name: str, change: Callable[[], Lease], *, is_end: bool = False) -> Lease:
        """Write the lease that `change` makes of the present ones, or its end; again if another gateway was faster."""
        for _ in range(10):
            lease = change()
            try:
                await self.bucket.write(name, b"" if is_end else lease.packed())
            except Conflict:
                continue
            except (NatsError, TimeoutError) as exc:
                raise Failure("unreachable", f"the queue is away ({told(exc)}); retry", retry_after_s=1) from exc
            return lease
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
