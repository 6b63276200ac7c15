"""The connection to NATS, which is kept for ever: what is sent while it is down is sent once it is up again."""

import logging
import ssl
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    KeyValueConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError
from nats.js.kv import KeyValue

from sie_triton.cluster import subjects
from sie_triton.cluster.permissions import inbox
from sie_triton.settings import Settings, words

log = logging.getLogger(__name__)

# Pause between two attempts to connect, in seconds.
RECONNECT_S = 0.25

# Interval of pings, in seconds: a server that does not answer two of them, for example because it was stopped or cut
# off, is taken for gone.
PING_S, MAX_PINGS = 3, 2

# Bytes that wait to be sent while the connection is down.
MAX_PENDING_BYTES = 64 * 1024**2

# Interval between two log lines about failures of the connection, in seconds.
QUIET_S = 5.0

# Time after which work that its worker no longer reports on goes to another one, in seconds.
ACK_WAIT_S = 5.0

# A request that is this old has passed its deadline: no timeout is longer.
MAX_AGE_S = 3600.0

# Work of a model that workers may hold at a time, without having answered.
MAX_HELD = 10_000

# A consumer without workers for this long is removed, in seconds. What its model's requests left is not lost with it.
UNUSED_S = 3600.0

# Requests that ended their Tritons are kept for so many seconds, and at most so many bytes.
DEAD_AGE_S, DEAD_BYTES = 7 * 24 * 3600.0, 256 * 1024**2


async def connect(
    settings: Settings,
    user: str,
    name: str,
    reconnected: Callable[[], Awaitable[None]] | None = None,
    closed: Callable[[], Awaitable[None]] | None = None,
) -> Client:
    """Return a connection; a server that is away is awaited for ever. `reconnected` is called after each return.

    `user` is the part of the cluster that connects, one of permissions.PERMISSIONS. `closed` is called when the server
    has refused the connection for good, for example because a password has changed, and when it is closed.
    """
    reporter = _Reporter()
    return await nats.connect(
        list(words(settings.nats_url)),
        name=f"{user} {name}",
        inbox_prefix=inbox(user),
        user=settings.nats_user or None,
        password=settings.nats_password or None,
        user_credentials=str(settings.nats_credentials) if settings.nats_credentials else None,
        tls=ssl.create_default_context(cafile=settings.nats_tls_ca) if settings.nats_tls_ca else None,
        allow_reconnect=True,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_S,
        ping_interval=PING_S,
        max_outstanding_pings=MAX_PINGS,
        pending_size=MAX_PENDING_BYTES,
        error_cb=reporter.report,
        closed_cb=closed,
        reconnected_cb=reconnected,
    )


class _Reporter:
    """Logs failures of a connection, one line in QUIET_S."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    async def report(self, error: Exception) -> None:
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + QUIET_S
            log.warning("queue: %s: %s", type(error).__name__, error)


async def open_stream(js: JetStreamContext, pool: str, settings: Settings) -> None:
    """Make the stream of a pool, or give an existing one today's settings."""
    config = StreamConfig(
        name=subjects.stream(pool),
        subjects=[subjects.all_work(pool)],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_age=MAX_AGE_S,
        max_msgs=settings.queue_max_messages,
        max_bytes=settings.queue_max_bytes,
        num_replicas=settings.queue_replicas,
    )
    await _made_or_updated(js, config)


async def open_dead_stream(js: JetStreamContext, settings: Settings) -> None:
    """Make the stream of requests that ended the Tritons which ran them."""
    config = StreamConfig(
        name=subjects.DEAD_STREAM,
        subjects=[subjects.DEAD_SUBJECTS],
        storage=StorageType.FILE,
        max_age=DEAD_AGE_S,
        max_bytes=DEAD_BYTES,
        num_replicas=settings.queue_replicas,
    )
    await _made_or_updated(js, config)


async def _made_or_updated(js: JetStreamContext, config: StreamConfig) -> None:
    try:
        await js.add_stream(config)
    except BadRequestError:
        await js.update_stream(config)


async def open_consumer(js: JetStreamContext, pool: str, model: str) -> None:
    """Make the consumer through which the workers of a pool share the work of a model; an existing one stays."""
    config = ConsumerConfig(
        durable_name=subjects.token(model),
        filter_subject=subjects.work(pool, model),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_ack_pending=MAX_HELD,
        inactive_threshold=UNUSED_S,
    )
    await js.add_consumer(subjects.stream(pool), config)


async def open_bucket(js: JetStreamContext, name: str, settings: Settings, **more: Any) -> KeyValue:
    """Make a bucket, or return the one of this name; `more` are fields of KeyValueConfig."""
    try:
        return await js.create_key_value(KeyValueConfig(bucket=name, replicas=settings.queue_replicas, **more))
    except BadRequestError:  # it was made with other settings, which stay
        return await js.key_value(name)


def next_of(pool: str, model: str) -> str:
    """Return the subject of requests for a model's next work (NATS ADR-13)."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{subjects.stream(pool)}.{subjects.token(model)}"


def told(error: Any) -> str:
    """Return an error of NATS in a few words."""
    return str(getattr(error, "description", "") or error or type(error).__name__)
