"""The gateway's side of the queue: its connection, its heartbeats, and the turn of each request."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import ceil
from time import monotonic
from uuid import uuid4

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket
from sie_triton.cluster.connection import OwnJetStream, connect, listen
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.questions import Questions
from sie_triton.cluster.gateway.requests import Requests
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Answer, Wanted
from sie_triton.cluster.model_files import reader
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.cluster.policies.fair import Durations, Turns
from sie_triton.cluster.tasks import Tasks, restarted_forever
from sie_triton.doors.memory import hold
from sie_triton.errors import BusyError, DeadlinePassed
from sie_triton.settings import Settings, words

log = logging.getLogger(__name__)


class Queue:
    """Connection of one gateway process to the queue, as a context manager. Belongs to one event loop."""

    def __init__(self, settings: Settings, limits: GatewayLimits = GatewayLimits()) -> None:
        self._settings, self.limits = settings, limits
        self.name = f"{settings.worker_id or 'gateway'}-{uuid4().hex[:12]}"
        self._began_at = time.time() - time.monotonic()
        profiles, startable = words(settings.gateway_configured_gpus), words(settings.gateway_configured_pools)
        self.pools = Pools(settings.pool, profiles, startable, limits)
        self.requests: Requests
        self.questions: Questions
        self._heard_at = time.monotonic()  # the latest time at which the queue had this gateway's heartbeat
        self._is_closing = False
        self._gate = Gate(self.pools.window, limits)
        self._tasks = Tasks()
        self._nats: Client
        self._js: OwnJetStream

    async def __aenter__(self) -> "Queue":
        limits = self.limits
        self._nats = await connect(self._settings, GATEWAY, self.name, self._reconnected, self._closed, limits)
        self._js = OwnJetStream(self._nats, timeout=limits.confirm_s)
        payloads = Payloads(url) if (url := self._settings.payload_store_url) else None
        self.requests = Requests(self._nats, self._js, self.name, self._now, self.pools, payloads, limits)
        await self.requests.listen()
        await listen(self._nats, subjects.ALL_WORKERS, self.pools.workers.hear)
        await listen(self._nats, subjects.ALL_GATEWAYS, self._hear_gateway)
        self.questions = Questions(self._nats, self.pools, limits)
        self.pools.listen_anew()
        self.requests.prepare(self._settings.pool)
        producers = words(self._settings.nats_config_trusted_producers)
        poll_s = self._settings.worker_config_poll_interval_ms / 1000
        opened = partial(self._js.key_value, subjects.MODEL_FILES)
        self.model_files = Bucket(opened, reader(producers), poll_s=poll_s, limits=limits)
        self.pools.model_files = self.model_files.values
        self.leases = Leases(self._settings, self._js, self.pools, limits)
        self._figures = metrics.QueueMetrics(self._js, self.pools, self.leases, limits)
        parts = [self.model_files.watch, self.leases.bucket.watch, self._live]
        parts += [self._figures.keep_measuring, self.requests.keep_sending, self.requests.sweep]
        for work in parts:
            self._tasks.start(restarted_forever(work, limits.restart_s))
        return self

    async def _reconnected(self) -> None:
        self.pools.listen_anew()
        self.model_files.doubt()
        self.leases.bucket.doubt()

    async def _closed(self) -> None:
        if not self._is_closing:
            log.error("the queue refuses this gateway; it ends, to be started anew")
            os.kill(os.getpid(), signal.SIGTERM)

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._tasks.cancel()
        await self.requests.close()
        with suppress(NatsError, TimeoutError):
            await self._nats.flush(1)
        await self._nats.close()

    @property
    def is_connected(self) -> bool:
        return bool(self._nats.is_connected)

    @property
    def is_ready(self) -> bool:
        """True if a request can be answered now, or told to wait for a worker that can be started."""
        has_worker = any(each.is_ready for each in self.pools.workers.all())
        return self.is_connected and (has_worker or self.pools.can_start)

    @property
    def num_waiting(self) -> int:
        return self.requests.num_waiting + self._gate.num_waiting

    async def submit(
        self, pool: str, model: str, request: bytes, left_s: float, tenant: str = ""
    ) -> tuple[Answer, bytes]:
        """Return the answer to a ModelInferRequest, which has `left_s` seconds.

        Raise BusyError if the queue does not take it, or would not answer it in time, and DeadlinePassed if no answer
        comes in time. Copies and answer are charged to the memory of the request. If this is cancelled, the request is
        taken out of the queue, or no longer computed.
        """
        subjects.token(model)
        left_s = min(left_s, self.limits.max_age_s)
        deadline = self._now() + left_s
        try:
            async with (
                asyncio.timeout(left_s + self.limits.answer_grace_s),
                self._gate.turn(pool, model, tenant, left_s, len(request)),
            ):
                answer, body = await self.requests.answered(pool, model, request, deadline, tenant)
        except BusyError:
            metrics.REJECTED.labels(pool).inc()
            raise
        except TimeoutError as exc:
            where = "" if self.is_connected else "; the gateway has no connection to its queue"
            raise DeadlinePassed(f"timeout: the request was not answered within {left_s:.3g} s{where}") from exc
        hold(len(body))
        return answer, body

    async def _hear_gateway(self, message: Msg) -> None:
        await self.pools.hear_gateway(message)
        if message.subject == subjects.gateway_health(self.name):
            now = time.monotonic()
            if now - self._heard_at > self.limits.own_silence_s:
                await self.requests.send_again()
            self._heard_at = now

    async def _live(self) -> None:
        """Publish this gateway's heartbeat: workers drop the requests of one that is gone."""
        while True:
            with suppress(NatsError):
                await self._nats.publish(subjects.gateway_health(self.name), f"{self._now():.6f}".encode())
            self.pools.forget_gateways()
            self.leases.forget_old()
            self.requests.refuse_removed()
            self._gate.look()
            waiting = self._gate.waiting()
            with suppress(NatsError):
                for (pool, model), num in waiting.items():
                    await self._nats.publish(subjects.wanted(pool), Wanted(model, num).packed())
            self._figures.show(waiting)
            await asyncio.sleep(self.limits.own_heartbeat_s)

    def _now(self) -> float:
        """Return seconds of the Unix epoch by a clock that does not jump, which workers know from the heartbeat."""
        return self._began_at + time.monotonic()


class _Line:
    """Requests for one model."""

    def __init__(self, durations: Durations) -> None:
        self.turns = Turns[tuple[str, asyncio.Future[None]]]()
        self.durations = durations


class Gate:
    """Limits a gateway's requests in the queue, which serves them in their order. Belongs to one event loop.

    Requests beyond the limit wait here, each tenant's in a line of its own. `window` returns how many requests for a
    model may be in the queue. A tenant that has few there passes, up to twice as many in all.
    """

    def __init__(self, window: Callable[[str, str], int], limits: GatewayLimits = GatewayLimits()) -> None:
        self._window, self._limits = window, limits
        self._lines: dict[tuple[str, str], _Line] = {}
        self._num_waiting = 0
        self._of_tenants: dict[str, int] = {}

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @asynccontextmanager
    async def turn(self, pool: str, model: str, tenant: str, left_s: float, num_bytes: int = 0) -> AsyncIterator[None]:
        """Context manager for one request of `num_bytes` in the queue; it waits for a turn.

        Raise BusyError at once if too many wait, or if the answer would come after `left_s` seconds.
        """
        if (line := self._lines.get((pool, model))) is None:
            line = self._lines[pool, model] = _Line(Durations(self._limits.max_rated, self._limits.min_rated))
        num_ahead, began = line.turns.num_sent + line.turns.ahead(tenant), monotonic()
        if (expected_s := line.durations.expected_s(num_ahead, num_bytes)) > left_s:
            raise BusyError(
                f"the request would take {expected_s:.3g} s, and has {left_s:.3g} s; retry, or allow more time",
                retry_after_s=ceil(expected_s - left_s),
            )
        is_answered = False
        try:
            if line.turns.may_enter(tenant, self._window(pool, model), self._limits.min_of_tenant):
                line.turns.enter(tenant)
            else:
                await self._wait(pool, model, line, tenant)
            try:
                yield
                is_answered = True
            finally:
                self._leave(pool, model, line, tenant)
        finally:
            took_s = monotonic() - began
            if is_answered or took_s >= left_s:  # else it was refused, or its client did not wait
                line.durations.add(num_ahead, num_bytes, took_s)

    def waiting(self) -> dict[tuple[str, str], int]:
        """Return the number of requests that wait here, by pool and model."""
        return {key: len(line.turns) for key, line in self._lines.items() if line.turns}

    def look(self) -> None:
        """Let requests in whose turn has come because workers joined."""
        for (pool, model), line in [*self._lines.items()]:
            self._let_in(pool, model, line)

    async def _wait(self, pool: str, model: str, line: _Line, tenant: str) -> None:
        of_tenant, limits = self._of_tenants.get(tenant, 0), self._limits
        if self._num_waiting >= limits.max_waiting or of_tenant >= limits.max_waiting_of_tenant:
            raise BusyError(f"{self._num_waiting} requests wait, {of_tenant} of them yours; retry")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.turns.add(tenant, (tenant, turn))
        self._num_waiting += 1
        self._of_tenants[tenant] = of_tenant + 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this request's turn already
                self._leave(pool, model, line, tenant)
            else:
                line.turns.remove(tenant, (tenant, turn))
            raise
        finally:
            self._num_waiting -= 1
            self._of_tenants[tenant] -= 1
            if not self._of_tenants[tenant]:
                del self._of_tenants[tenant]

    def _leave(self, pool: str, model: str, line: _Line, tenant: str) -> None:
        line.turns.leave(tenant)
        self._let_in(pool, model, line)

    def _let_in(self, pool: str, model: str, line: _Line) -> None:
        limit = self._window(pool, model) if line.turns else 0
        while line.turns and line.turns.num_sent < limit:
            tenant, turn = line.turns.take()
            if not turn.done():
                line.turns.enter(tenant)
                turn.set_result(None)
        if not line.turns and not line.turns.num_sent:
            self._lines.pop((pool, model), None)
