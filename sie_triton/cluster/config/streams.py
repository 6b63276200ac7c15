"""The streams of a cluster, which config services make, and give today's settings.

gateway, sidecar → sie.streams.POOL → stream and claims of the pool

Nobody else may: who makes a stream can have it copy another one, or publish to any subject.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError, NotFoundError, ServerError
from nats.js.kv import KeyValue

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import listen, told
from sie_triton.cluster.limits import ConfigLimits
from sie_triton.cluster.workers import Workers
from sie_triton.settings import Settings

log = logging.getLogger(__name__)

PREFIX = subjects.stream("")


class Streams:
    """Belongs to one event loop. Several config services may look after the same streams.

    The pool of the settings is never removed, nor is a pool with workers.
    """

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        settings: Settings,
        workers: Workers,
        limits: ConfigLimits = ConfigLimits(),
    ) -> None:
        self._nats, self._js, self._settings, self._workers = client, js, settings, workers
        self._limits = limits
        self._unused: dict[str, tuple[int, float]] = {}  # pool → number of its last request, and when that was seen

    async def keep(self) -> None:
        """Look at all streams now and then, for ever."""
        while True:
            pause_s = self._limits.streams_look_s
            try:
                await self._look()
            except (NatsError, TimeoutError) as exc:
                log.warning("queue: streams: %s", told(exc))
                pause_s = 2.0
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        await self._remove_unused(await self._pools())
        for pool in await self._pools():
            await self._open(pool)
        await self._open_common()

    async def listen(self) -> None:
        """Make the streams that gateways and sidecars ask for, from now on."""
        await listen(self._nats, subjects.ALL_STREAMS, self._make, "config")

    async def _make(self, message: Msg) -> None:
        pool = message.subject.rpartition(".")[2]
        if not subjects.NAME.fullmatch(pool):
            return
        with suppress(NatsError, TimeoutError):  # who has no stream asks again
            pools = await self._pools()
            if pool in pools or len(pools) < self._limits.max_pools:
                await self._open(pool)
            else:
                log.warning("queue: no stream for pool %s: a cluster has at most %d", pool, self._limits.max_pools)

    async def _open_common(self) -> None:
        """Make the bucket of leases, which forgets what has not been renewed, and the stream of dead letters."""
        await open_bucket(self._js, subjects.LEASES, self._settings, ttl=self._limits.lease_ttl_s)
        config = StreamConfig(
            name=subjects.DEAD_STREAM,
            subjects=[subjects.DEAD_SUBJECTS],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=self._limits.dead_age_s,
            max_bytes=256 * 1024**2,
            num_replicas=self._settings.queue_replicas,
        )
        await _make_or_update(self._js, config)

    async def _open(self, pool: str) -> None:
        """Make the stream of a pool, or give an existing one today's settings, and its bucket of claims."""
        config = StreamConfig(
            name=subjects.stream(pool),
            subjects=[subjects.all_work(pool)],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_age=self._limits.max_age_s,
            max_msgs=self._settings.queue_max_messages,
            max_bytes=self._settings.queue_max_bytes,
            num_replicas=self._settings.queue_replicas,
        )
        try:
            await _make_or_update(self._js, config)
            await open_bucket(self._js, subjects.claims(pool), self._settings)
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: stream of pool %s: %s", pool, told(exc))

    async def _pools(self) -> dict[str, Any]:
        """Return the state of each pool's stream."""
        found: list[StreamInfo] = []
        while page := await self._js.streams_info(offset=len(found)):
            found += page
        named = {each.config.name or "": each.state for each in found}
        return {name.removeprefix(PREFIX): state for name, state in named.items() if name.startswith(PREFIX)}

    async def _remove_unused(self, pools: Mapping[str, Any]) -> None:
        """Remove the streams of pools that had no worker and no new request for longer than a lease."""
        now, seen = monotonic(), self._unused
        self._unused = {}
        for pool, state in pools.items():
            if pool != self._settings.pool and not self._workers.alive(pool) and not state.messages:
                last, since = seen.get(pool, (-1, 0.0))
                self._unused[pool] = (last, since) if last == state.last_seq else (state.last_seq, now)
        for pool, (_, since) in self._unused.items():
            if now - since >= self._limits.pool_unused_s:
                for stream in (subjects.stream(pool), f"KV_{subjects.claims(pool)}"):
                    with suppress(NotFoundError):  # another config service was faster
                        await self._js.delete_stream(stream)
                log.info("removed the queue of pool %s, which nobody uses", pool)


async def open_bucket(js: JetStreamContext, name: str, settings: Settings, **more: Any) -> KeyValue:
    """Make a bucket, or return the one of this name; `more` are fields of KeyValueConfig."""
    try:
        return await js.create_key_value(KeyValueConfig(bucket=name, replicas=settings.queue_replicas, **more))
    except BadRequestError:  # it was made with other settings, which stay, but for those that copy or change entries
        present = (await js.stream_info(f"KV_{name}")).config
        if present.republish or present.sources or present.subject_transform or present.allow_direct:
            log.warning("queue: bucket %s had settings that copy or change entries; they are removed", name)
            plain = present.evolve(republish=None, sources=None, subject_transform=None, allow_direct=False)
            await js.update_stream(plain)
        return await js.key_value(name)


async def _make_or_update(js: JetStreamContext, config: StreamConfig) -> None:
    """Make a stream, or give an existing one this configuration.

    What cannot be updated is made anew if it is the queue of a pool. Other streams keep data for people.
    """
    name = config.name or ""
    try:
        await js.add_stream(config)
    except BadRequestError:
        present = (await js.stream_info(name)).config
        is_other = present.mirror is not None or present.retention != config.retention
        if is_other and config.retention == RetentionPolicy.WORK_QUEUE:
            log.error("queue: stream %s was not made by a config service; it is made anew", name)
            await js.delete_stream(name)
            await js.add_stream(config)
            return
        try:
            await js.update_stream(config)
        except (BadRequestError, ServerError) as exc:
            log.error("queue: stream %s keeps its settings: %s", name, told(exc))
