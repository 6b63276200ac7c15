"""The gateway's side of the queue: it sends requests, waits for their answers, and deletes what has been answered.

submit → stream → sidecar → answer → the request is deleted from the stream

It is deleted once the gateway has the whole answer. An answer that gets lost therefore leaves the request in the
stream, which gives it to another worker; so does the death of a worker, for which the gateway sends nothing again. A
second answer finds nobody who waits; the request is deleted, too.
"""

import asyncio
import json
import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from grpc import StatusCode
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, OutboundBufferLimitError
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket
from sie_triton.cluster.connection import MAX_AGE_S, OwnJetStream, await_streams, connect, listen, told
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.gate import Gate
from sie_triton.cluster.gateway.large import LargeRequests
from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.mentions import Mentions
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.questions import Questions
from sie_triton.cluster.gateway.queue_metrics import QueueMetrics
from sie_triton.cluster.messages import Answer, Cancel, Malformed, Wanted, Work, unknown_model
from sie_triton.cluster.model_files import opener, reader
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.cluster.restarts import restarted_forever
from sie_triton.doors.memory import hold
from sie_triton.errors import BusyError, DeadlinePassed, InputError
from sie_triton.settings import Settings, words

log = logging.getLogger(__name__)

# Time for the stream to confirm a request, in seconds; then it is sent again. A double is answered once all the same.
CONFIRM_S = 2.0

# Interval of this gateway's heartbeats, in seconds. Workers drop the requests of a gateway that was silent for
# GATEWAY_S (cluster/sidecar/gateways.py), so requests that wait are sent again after a silence of OWN_SILENCE_S.
LIVE_S, OWN_SILENCE_S = 1.0, 10.0

# Time after a request's deadline in which its answer may arrive, in seconds: the stages answer at the deadline, and say
# what the request waited for.
GRACE_S = 0.25

# Header by which a stream recognizes what it has already, for two minutes.
MESSAGE_ID = "Nats-Msg-Id"

# Interval between two announcements of a model that no worker serves, in seconds.
ANNOUNCE_S = 0.25

# Copies of a request that the queue makes: a message or payload, and in the buffer of NATS or of the payload store.
COPIES = 2

# Time after the removal of a model in which requests that a worker has fetched may be answered, in seconds.
REMOVED_S = 5.0

NOT_FOUND = StatusCode.NOT_FOUND.value[0]

# Limit of the parts of an answer: 2 GiB at the usual size of NATS' messages.
MAX_PARTS = 2100

# Error codes of JetStream for a full stream: messages, bytes, and the account's storage.
FULL = frozenset({10077, 10047, 10122, 10028, 10023})


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its answer. `sendings` counts how often it was sent as a new message."""

    pool: str
    model: str
    message: bytes
    answer: asyncio.Future[tuple[Answer, bytes]]
    sending: "asyncio.Task[PubAck]"
    sendings: int = 1
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def fail(self, sending: "asyncio.Task[PubAck]") -> None:
        """Pass on why the queue refuses the request."""
        if not sending.cancelled() and (error := sending.exception()) is not None and not self.answer.done():
            self.answer.set_exception(error)

    def joined(self, answer: Answer, body: bytes) -> bytes | None:
        """Add a part; return the whole body once all parts of this delivery are there."""
        if not 0 <= answer.part < answer.num_parts <= MAX_PARTS:
            return None
        self.parts[answer.receipt, answer.part] = body
        keys = [(answer.receipt, part) for part in range(answer.num_parts)]
        return b"".join(map(self.parts.__getitem__, keys)) if self.parts.keys() >= set(keys) else None


class Queue:
    """Connection of one gateway process to the queue, as a context manager. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = f"{settings.worker_id or 'gateway'}-{uuid4().hex[:12]}"
        self._began_at = time.time() - time.monotonic()
        profiles, startable = words(settings.gateway_configured_gpus), words(settings.gateway_configured_pools)
        self.pools = Pools(settings.pool, profiles, startable)
        self.questions: Questions
        self.mentions: Mentions
        self._large = LargeRequests(settings.payload_store_url, self.name, self._now)
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._heard_at = time.monotonic()  # the latest time at which the queue had this gateway's heartbeat
        self._is_closing = False
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._gate = Gate(self.pools.window)
        self._announced: dict[tuple[str, str], float] = {}
        self._removed_at: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._nats: Client
        self._js: OwnJetStream

    async def __aenter__(self) -> "Queue":
        self._nats = await connect(self._settings, GATEWAY, self.name, self._reconnected, self._closed)
        self._js = OwnJetStream(self._nats, timeout=CONFIRM_S)
        await listen(self._nats, subjects.answers(self.name), self._take)
        await listen(self._nats, subjects.ALL_WORKERS, self.pools.workers.hear)
        await listen(self._nats, subjects.ALL_GATEWAYS, self._hear_gateway)
        self.questions = Questions(self._nats, self.pools.workers)
        self.mentions = Mentions(self.pools, self.questions)
        self.pools.listen_anew()
        self._prepare(self._settings.pool)
        producers = words(self._settings.nats_config_trusted_producers)
        poll_s = self._settings.worker_config_poll_interval_ms / 1000
        self.model_files = Bucket(opener(self._js), reader(producers), poll_s=poll_s)
        self.pools.model_files = self.model_files.values
        self.leases = Leases(self._settings, self._js, self.pools)
        self._figures = QueueMetrics(self._js, self.pools, self.leases)
        parts = [self.model_files.watch, self.leases.bucket.watch, self._live]
        parts += [self._figures.keep_measuring, self._large.sweep]
        for work in parts:
            self._start(restarted_forever(work))
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
        for task in self._tasks:
            task.cancel()
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
        return len(self._waiting) + self._gate.num_waiting

    async def submit(
        self, pool: str, model: str, request: bytes, left_s: float, tenant: str = ""
    ) -> tuple[Answer, bytes]:
        """Return the answer to a ModelInferRequest, which has `left_s` seconds.

        Raise BusyError if the queue does not take it, or would not answer it in time, and DeadlinePassed if no answer
        comes in time. Copies and answer are charged to the memory of the request. If this is cancelled, the request is
        taken out of the queue, or no longer computed.
        """
        subjects.token(model)
        left_s = min(left_s, MAX_AGE_S)
        deadline = self._now() + left_s
        try:
            async with asyncio.timeout(left_s + GRACE_S), self._gate.turn(pool, model, tenant, left_s):
                answer, body = await self._answered(pool, model, request, deadline, tenant)
        except BusyError:
            metrics.REJECTED.labels(pool).inc()
            raise
        except TimeoutError as exc:
            where = "" if self.is_connected else "; the gateway has no connection to its queue"
            raise DeadlinePassed(f"timeout: the request was not answered within {left_s:.3g} s{where}") from exc
        hold(len(body))
        return answer, body

    async def _answered(
        self, pool: str, model: str, request: bytes, deadline: float, tenant: str
    ) -> tuple[Answer, bytes]:
        hold(COPIES * len(request))
        number = next(self._numbers)
        payload = await self._large.stored(number, deadline, request, self._nats.max_payload)
        work = Work(self.name, number, deadline, model, 0, payload, tenant)
        message = work.packed(b"" if payload else request)
        self._announce(pool, model)
        sending = asyncio.create_task(self._send(pool, model, message, f"{self.name}.{number}"))
        waiting = _Waiting(pool, model, message, asyncio.get_running_loop().create_future(), sending)
        sending.add_done_callback(waiting.fail)
        self._waiting[number] = waiting
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._abandon(pool, number, waiting.sending)
            raise
        finally:
            del self._waiting[number]
            if payload:
                self._start(self._large.remove(payload))
            if waiting.sendings > 1 and not waiting.answer.cancelled():
                self._abandon(pool, number, waiting.sending)  # a worker may have the other message, too
            elif not waiting.sending.done() and not waiting.answer.cancelled():
                self._start(self._confirmed(waiting.sending))

    async def _hear_gateway(self, message: Msg) -> None:
        await self.pools.hear_gateway(message)
        if message.subject == subjects.gateway_health(self.name):
            now = time.monotonic()
            if now - self._heard_at > OWN_SILENCE_S:
                self._send_again_after_own_silence()
            self._heard_at = now

    def _send_again_after_own_silence(self) -> None:
        """Send the requests that wait as new messages. A worker that still has one drops the second message.

        A message that was not confirmed may have been stored and dropped, too: under its id it would be a double.
        """
        for number, each in self._waiting.items():
            if not each.answer.done():
                each.sending.cancel()
                each.sendings += 1
                name = f"{self.name}.{number}.{each.sendings}"
                each.sending = asyncio.create_task(self._send(each.pool, each.model, each.message, name))
                each.sending.add_done_callback(each.fail)

    async def _send(self, pool: str, model: str, message: bytes, message_id: str) -> PubAck:
        """Return the stream's confirmation; without one, send again. BusyError if the stream is full.

        What is sent while there is no connection would be kept, and sent with each repetition once there is one.
        """
        while True:
            while not self.is_connected:
                await asyncio.sleep(ANNOUNCE_S)
            try:
                return await self._js.publish(subjects.work(pool, model), message, headers={MESSAGE_ID: message_id})
            except APIError as exc:
                if exc.err_code in FULL or exc.code == 400:
                    raise BusyError(f"the queue is full ({told(exc)}); retry") from exc
                log.warning("queue: %s", told(exc))
            except NoStreamResponseError:
                self._prepare(pool)
            except MaxPayloadError as exc:
                raise InputError("the request is larger than the queue takes; send fewer or smaller items") from exc
            except OutboundBufferLimitError as exc:
                raise BusyError("the queue is away, and too many requests wait for it; retry") from exc
            except (NatsError, TimeoutError):
                pass
            metrics.UNSTORED.labels(pool).inc()
            await asyncio.sleep(ANNOUNCE_S)

    async def _confirmed(self, sending: "asyncio.Task[PubAck]") -> None:
        """Wait for the confirmation of a request that has been answered; it is not sent again."""
        with suppress(NatsError, TimeoutError, BusyError, InputError):
            await asyncio.wait_for(sending, CONFIRM_S)

    def _abandon(self, pool: str, number: int, sending: "asyncio.Task[PubAck]") -> None:
        self._keep(asyncio.create_task(self._withdraw(pool, number, sending)))

    async def _withdraw(self, pool: str, number: int, sending: "asyncio.Task[PubAck]") -> None:
        """Delete a request that no worker has fetched, and tell a worker that computes it."""
        with suppress(NatsError, TimeoutError, BusyError, InputError, asyncio.CancelledError):
            async with asyncio.timeout(CONFIRM_S):
                await self._nats.publish(subjects.cancelled(pool), Cancel(self.name, number).packed())
                confirmed = await sending
                await self._js.delete_msg(subjects.stream(pool), confirmed.seq)
        sending.cancel()

    def _announce(self, pool: str, model: str) -> None:
        """Tell the workers that a model is wanted; they claim it, unless one has."""
        now = time.monotonic()
        if now - self._announced.get((pool, model), 0.0) < ANNOUNCE_S:
            return
        if self.pools.is_claimed(pool, model):
            return
        self._announced[pool, model] = now
        self._start(self._nats.publish(subjects.wanted(pool), Wanted(model).packed()))

    def _refuse_removed(self) -> None:
        """Answer the requests for models that are removed: no worker fetches them any more."""
        now, seen = time.monotonic(), self._removed_at
        asked = {(each.pool, each.model) for each in self._waiting.values()}
        self._removed_at = {each: seen.get(each, now) for each in asked if self.pools.is_removed(*each)}
        for number, each in self._waiting.items():
            since = self._removed_at.get((each.pool, each.model), now)
            if now - since >= REMOVED_S and not each.answer.done():
                answer = Answer(number, self.name, NOT_FOUND, unknown_model(each.model))
                each.answer.set_result((answer, b""))
                self._abandon(each.pool, number, each.sending)

    async def _take(self, message: Msg) -> None:
        """Take an answer, or a part of one."""
        try:
            answer, body = Answer.read(message.data)
        except Malformed:
            return
        waiting = self._waiting.get(answer.number)
        if waiting is not None and answer.num_parts > 1:
            whole = waiting.joined(answer, body)
            if whole is None:
                return
            body = whole
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result((answer, body))
        if delivered := subjects.delivered(answer.receipt):
            await self._forget(*delivered)

    async def _forget(self, stream: str, number: int) -> None:
        """Delete work that has been answered. An acknowledgement could also fetch the next one: gateways may not."""
        what = json.dumps({"seq": number, "no_erase": True}).encode()
        await self._nats.publish(f"$JS.API.STREAM.MSG.DELETE.{stream}", what)

    def _prepare(self, pool: str) -> None:
        """Begin to ask for the streams of a pool, unless that has begun."""
        if pool not in self._preparing:
            task = self._preparing[pool] = asyncio.create_task(await_streams(self._nats, self._js, pool))
            task.add_done_callback(lambda _: self._preparing.pop(pool, None))
            self._keep(task)

    async def _live(self) -> None:
        """Publish this gateway's heartbeat: workers drop the requests of one that is gone."""
        while True:
            with suppress(NatsError):
                await self._nats.publish(subjects.gateway_health(self.name), f"{self._now():.6f}".encode())
            self.pools.forget_gateways()
            self.leases.forget_old()
            self._refuse_removed()
            self._gate.look()
            waiting = self._gate.waiting()
            with suppress(NatsError):
                for (pool, model), num in waiting.items():
                    await self._nats.publish(subjects.wanted(pool), Wanted(model, num).packed())
            self._figures.show(waiting)
            await asyncio.sleep(LIVE_S)

    def _now(self) -> float:
        """Return seconds of the Unix epoch by a clock that does not jump, which workers know from the heartbeat."""
        return self._began_at + time.monotonic()

    def _start(self, work: Any) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NatsError):
            log.error("queue: %s: %s", type(error).__name__, error)
