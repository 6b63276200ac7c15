"""Removes the streams and claims of pools that nobody uses any more: leased ones have names that clients choose."""

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import told
from sie_triton.cluster.gateway.pools import Pools

log = logging.getLogger(__name__)

# Interval between two looks, and time after which a pool counts as unused, in seconds.
LOOK_S, UNUSED_S = 600.0, 3600.0


class Unused:
    """Belongs to one event loop. Several gateways may look at the same streams. The pool `own` is never removed."""

    def __init__(self, js: JetStreamContext, pools: Pools, own: str) -> None:
        self._js, self._pools, self._own = js, pools, own
        self._since: dict[str, tuple[int, float]] = {}  # pool → number of its last request, and when that was seen

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(NotFoundError):  # another gateway was faster
                try:
                    await self.look()
                except (NatsError, TimeoutError) as exc:
                    log.warning("queue: unused pools: %s", told(exc))

    async def look(self) -> None:
        """Remove the streams of pools that had no worker, lease and new request for UNUSED_S."""
        prefix, unused = subjects.stream(""), {}
        for found in await self._js.streams_info():
            pool = (found.config.name or "").removeprefix(prefix)
            if pool != found.config.name and not self._is_used(pool) and not found.state.messages:
                last, since = self._since.get(pool, (-1, 0.0))
                unused[pool] = (last, since) if last == found.state.last_seq else (found.state.last_seq, monotonic())
        self._since = unused
        for pool, (_, since) in unused.items():
            if monotonic() - since >= UNUSED_S:
                await self._js.delete_stream(f"{prefix}{pool}")
                log.info("removed the queue of pool %s, which nobody uses", pool)
                with suppress(NotFoundError):
                    await self._js.delete_stream(f"KV_{subjects.claims(pool)}")

    def _is_used(self, pool: str) -> bool:
        return pool == self._own or self._pools.is_leased(pool) or bool(self._pools.workers.alive(pool))
