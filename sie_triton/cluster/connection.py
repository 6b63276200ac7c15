"""The connection to NATS, which is kept for ever: what is sent while it is down is sent once it is up again."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NotJSMessageError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from sie_triton.cluster import subjects
from sie_triton.cluster.limits import ClusterLimits, SidecarLimits
from sie_triton.cluster.permissions import inbox
from sie_triton.settings import Settings, words
from sie_triton.settings.secrets import secret

log = logging.getLogger(__name__)


async def connect(
    settings: Settings,
    user: str,
    name: str,
    reconnected: Callable[[], Awaitable[None]] | None = None,
    closed: Callable[[], Awaitable[None]] | None = None,
    limits: ClusterLimits = ClusterLimits(),
) -> Client:
    """Return a connection; a server that is away is awaited for ever. `reconnected` is called after each return.

    `user` is the part of the cluster that connects, one of permissions.PERMISSIONS. `closed` is called when the server
    has refused the connection for good, for example because a password has changed, and when it is closed.
    """
    reporter = _Reporter(limits.log_interval_s)
    return await nats.connect(
        list(words(settings.nats_url)),
        name=f"{user} {name}",
        inbox_prefix=inbox(user),
        user=settings.nats_user or None,
        password=partial(secret, settings.nats_password) if settings.nats_password else None,
        user_credentials=str(settings.nats_credentials) if settings.nats_credentials else None,
        tls=ssl.create_default_context(cafile=settings.nats_tls_ca) if settings.nats_tls_ca else None,
        allow_reconnect=True,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.25,
        ping_interval=limits.ping_s,
        max_outstanding_pings=2,
        pending_size=64 * 1024**2,
        error_cb=reporter.report,
        closed_cb=closed,
        reconnected_cb=reconnected,
    )


class _Reporter:
    """Logs failures of a connection, one line in `interval_s`."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._quiet_until = 0.0

    async def report(self, error: Exception) -> None:
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + self._interval_s
            log.warning("queue: %s: %s", type(error).__name__, error)


async def await_streams(
    client: Client, js: JetStreamContext, pool: str, limits: ClusterLimits = ClusterLimits()
) -> None:
    """Return once a pool has its streams: config services alone may make them, or give them today's settings."""
    logged_at = monotonic()
    while True:
        await client.publish(subjects.streams(pool))
        try:
            await js.stream_info(subjects.stream(pool))
            await js.stream_info(f"KV_{subjects.claims(pool)}")
            return
        except NotFoundError:
            reason = "no config service has made it yet"
        except (NatsError, TimeoutError) as exc:
            reason = told(exc)
        if monotonic() - logged_at >= limits.log_interval_s:
            logged_at = monotonic()
            log.warning("queue: pool %s has no stream: %s", pool, reason)
        await asyncio.sleep(0.25)


async def listen(
    client: Client, subject: str, callback: Callable[[Msg], Awaitable[None]], queue: str = ""
) -> Subscription:
    """Call `callback` with messages to `subject`, which may end with wildcards.

    A consumer can be made to deliver a stream's messages to any subject. They keep their own one, and are dropped here.
    """
    beginning = subject.partition("*")[0]

    async def hear(message: Msg) -> None:
        if message.subject.startswith(beginning):
            await callback(message)

    return await client.subscribe(subject, queue=queue, cb=hear)


class OwnJetStream(JetStreamContext):
    """JetStream whose subscriptions take messages of their own stream only.

    A consumer of another stream can be made to deliver to any inbox; the server tells which stream a message is from.
    """

    async def subscribe(self, *args: Any, **options: Any) -> Any:
        stream, callback = options["stream"], options.pop("cb")

        async def take(message: Msg) -> None:
            with suppress(NotJSMessageError):
                if message.metadata.stream != stream:
                    return
                await callback(message)

        return await super().subscribe(*args, **{**options, "cb": take})


async def open_consumer(js: JetStreamContext, pool: str, model: str, limits: SidecarLimits = SidecarLimits()) -> None:
    """Make the consumer through which the workers of a pool share the work of a model; an existing one stays."""
    config = ConsumerConfig(
        name=subjects.token(model),  # with a name, the subject of the request has the filter, so that it can be limited
        durable_name=subjects.token(model),
        filter_subject=subjects.work(pool, model),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=limits.ack_wait_s,
        max_ack_pending=10_000,  # that workers hold without having answered
        inactive_threshold=3600.0,  # without workers; what is in the stream is not lost with it
    )
    await js.add_consumer(subjects.stream(pool), config)


def next_of(pool: str, model: str) -> str:
    """Return the subject of requests for a model's next work (NATS ADR-13)."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{subjects.stream(pool)}.{subjects.token(model)}"


def told(error: Any) -> str:
    """Return an error of NATS in a few words.

    >>> told(TimeoutError())
    'TimeoutError'
    """
    return str(getattr(error, "description", "") or error) or type(error).__name__
