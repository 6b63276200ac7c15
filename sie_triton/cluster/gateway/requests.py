"""Requests of a gateway, from the queue's stream to their answers.

answered → stream → sidecar → answer → deleted from the stream
         → its client is gone, or its time → withdrawn
         → this gateway was cut off → sent again
         → its model was removed → refused

A request is deleted once the gateway has the whole answer. An answer that gets lost therefore leaves the request in the
stream, which gives it to another worker; so does the death of a worker, for which the gateway sends nothing again. A
second answer finds nobody who waits; the request is deleted, too. A request that is larger than a message of the queue
goes through the payload store.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from nats.aio.client import NO_RESPONDERS_STATUS, Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, OutboundBufferLimitError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import OwnJetStream, await_streams, listen
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import NOT_FOUND, Answer, Cancel, Malformed, Wanted, Work, unknown_model
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.tasks import Tasks
from sie_triton.doors.memory import hold
from sie_triton.errors import BusyError, InputError
from sie_triton.models.weights.object_store import StoreError

log = logging.getLogger(__name__)

# Copies of a request that the queue makes: a message or payload, and in the buffer of NATS or of the payload store.
COPIES = 2

# Error codes of JetStream for a full stream: messages, bytes, and the account's storage.
FULL = 10077, 10047, 10122, 10028, 10023


@dataclass(slots=True)
class Request:
    """A request that waits for its answer."""

    number: int
    pool: str
    model: str
    message: bytes
    answer: asyncio.Future[tuple[Answer, bytes]]
    # Subject of the stream's confirmation of the latest message that was made of it, and its number in the stream.
    inbox: str = ""
    stored: asyncio.Future[int] = field(init=False)
    # Number of messages that were made of it.
    num_messages: int = 0
    # When the message was sent last; 0: it has to be sent.
    sent_at: float = 0.0
    # A message of it may be left in the stream, or at a worker, although it has an answer.
    leaves_message: bool = False
    # Parts of answers, by receipt and number.
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        """Pass on why the queue refuses the request."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def joined(self, answer: Answer, body: bytes) -> bytes | None:
        """Add a part; return the whole body once all parts of this delivery are there."""
        if (answer.part, answer.num_parts) == (0, 1):
            return body
        if not 0 <= answer.part < answer.num_parts <= 2100:  # 2 GiB at the usual size of messages
            return None
        self.parts[answer.receipt, answer.part] = body
        keys = [(answer.receipt, part) for part in range(answer.num_parts)]
        return b"".join(map(self.parts.__getitem__, keys)) if self.parts.keys() >= set(keys) else None


class Requests:
    """Requests of the gateway `name` that wait for answers. Belongs to one event loop.

    `now` returns seconds of the Unix epoch, by a clock that does not jump. Without `payloads` large requests are
    refused.
    """

    def __init__(
        self,
        client: Client,
        js: OwnJetStream,
        name: str,
        now: Callable[[], float],
        pools: Pools,
        payloads: Payloads | None,
        limits: GatewayLimits = GatewayLimits(),
    ) -> None:
        self._limits = limits
        self._nats, self._js, self._name, self._now = client, js, name, now
        self._pools, self._payloads = pools, payloads
        self._inbox = client.new_inbox()
        self._numbers = count(1)
        self._waiting: dict[int, Request] = {}
        self._unconfirmed: dict[str, Request] = {}  # by the subject of the confirmation
        self._answered: list[subjects.Delivered] = []  # to be deleted
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._announced: dict[tuple[str, str], float] = {}
        self._removed_at: dict[tuple[str, str], float] = {}
        self.tasks = Tasks()

    async def listen(self) -> None:
        await listen(self._nats, subjects.answers(self._name), self.take)
        await listen(self._nats, f"{self._inbox}.*", self.confirm)

    async def close(self) -> None:
        await self._delete_answered()
        self.tasks.cancel()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # A request's way, in order

    async def answered(
        self, pool: str, model: str, request: bytes, deadline: float, tenant: str
    ) -> tuple[Answer, bytes]:
        """Send a ModelInferRequest and return its answer. Raise BusyError or InputError if the queue refuses it.

        Copies of it are charged to its memory. If this is cancelled, it is taken out of the queue, or not computed.
        """
        hold(COPIES * len(request))
        number = next(self._numbers)
        payload = await self._stored(number, deadline, request)
        work = Work(self._name, number, deadline, model, 0, payload, tenant)
        message = work.packed(b"" if payload else request)
        self._announce(pool, model)
        sent = Request(number, pool, model, message, asyncio.get_running_loop().create_future())
        self._waiting[number] = sent
        try:
            await self._send_new(sent)
            return await sent.answer
        except asyncio.CancelledError:
            sent.answer.cancel()
            raise
        finally:
            del self._waiting[number]
            if payload:
                self.tasks.start(self._remove(payload))
            if sent.answer.cancelled() or sent.leaves_message:
                self.tasks.start(self._withdraw(sent))
            else:
                self._unconfirmed.pop(sent.inbox, None)

    async def _stored(self, number: int, deadline: float, request: bytes) -> str:
        """Store a request that no message can hold; return its path, empty for a smaller one.

        Raise BusyError if the store does not take it, and InputError if there is none.
        """
        room = self._nats.max_payload - 4096  # subjects and headers around it
        if len(request) <= room:
            return ""
        if self._payloads is None:
            raise InputError(
                f"the request has {len(request)} bytes, and the queue takes {room}; send fewer or smaller items, or "
                "give the cluster a payload store (SIE_PAYLOAD_STORE_URL)"
            )
        try:
            return await self._payloads.put(self._name, number, deadline, request)
        except StoreError as exc:
            log.warning("payload store: %s", exc)
            raise BusyError("the payload store does not take the request; retry, or send smaller ones") from exc

    async def _remove(self, payload: str) -> None:
        assert self._payloads is not None
        with suppress(StoreError):  # a gateway removes it later
            await self._payloads.remove(payload)

    async def sweep(self) -> None:
        """Remove payloads that gateways have left behind, for ever."""
        while self._payloads is not None:
            try:
                if num_removed := await self._payloads.sweep(self._now()):
                    log.info("payload store: removed %d payloads whose time had passed", num_removed)
            except StoreError as exc:
                log.warning("payload store: %s", exc)
            await asyncio.sleep(60.0)

    def _announce(self, pool: str, model: str) -> None:
        """Tell the workers that a model is wanted; they claim it, unless one has."""
        now = time.monotonic()
        if now - self._announced.get((pool, model), 0.0) < self._limits.announce_s:
            return
        if self._pools.is_claimed(pool, model):
            return
        self._announced[pool, model] = now
        self.tasks.start(self._nats.publish(subjects.wanted(pool), Wanted(model).packed()))

    async def _send_new(self, request: Request) -> None:
        """Send a request, the second time as another message: a worker that still has the first drops that.

        A message that was not confirmed may have been stored and dropped, too: under its id it would be a double.
        """
        self._unconfirmed.pop(request.inbox, None)
        request.leaves_message = request.num_messages > 0
        request.num_messages += 1
        request.inbox = f"{self._inbox}.{request.number}-{request.num_messages}"
        request.stored = asyncio.get_running_loop().create_future()
        self._unconfirmed[request.inbox] = request
        await self._send(request)

    async def _send(self, request: Request) -> None:
        """Send the latest message of a request; `keep_sending` does so again until the stream has confirmed it.

        What is sent while there is no connection would be kept, and sent with each repetition once there is one.
        """
        if not self._nats.is_connected:
            return
        request.sent_at = time.monotonic()
        # By this header a stream recognizes what it has already, for two minutes.
        headers = {"Nats-Msg-Id": f"{self._name}.{request.number}.{request.num_messages}"}
        subject = subjects.work(request.pool, request.model)
        try:
            await self._nats.publish(subject, request.message, reply=request.inbox, headers=headers)
        except MaxPayloadError:
            request.fail(InputError("the request is larger than the queue takes; send fewer or smaller items"))
        except OutboundBufferLimitError:
            request.fail(BusyError("the queue is away, and too many requests wait for it; retry"))
        except NatsError:
            self._repeat(request)
        await self._delete_answered()  # written together, behind the request

    async def confirm(self, message: Msg) -> None:
        """Take the stream's confirmation of a message, or its refusal."""
        request = self._unconfirmed.get(message.subject)
        if request is None:
            return
        if (message.headers or {}).get("Status") == NO_RESPONDERS_STATUS:
            self.prepare(request.pool)
            self._repeat(request)
            return
        with suppress(ValueError, RecursionError):
            match json.loads(message.data):
                case {"error": {"code": code, "err_code": kind, "description": why}} if kind in FULL or code == 400:
                    request.fail(BusyError(f"the queue is full ({why}); retry"))
                case {"error": error}:
                    log.warning("queue: %s", str(error)[:200])
                    self._repeat(request)
                case {"seq": int(sequence)}:
                    del self._unconfirmed[message.subject]
                    request.stored.set_result(sequence)

    def _repeat(self, request: Request) -> None:
        """Have a message sent again soon."""
        metrics.UNSTORED.labels(request.pool).inc()
        request.sent_at = 0.0

    async def keep_sending(self) -> None:
        """Send again what the stream does not confirm, for ever."""
        while True:
            await asyncio.sleep(self._limits.announce_s)
            for request in [*self._unconfirmed.values()]:
                if request.sent_at and time.monotonic() - request.sent_at >= self._limits.confirm_s:
                    self._repeat(request)
                if not request.sent_at and not request.answer.done():
                    await self._send(request)

    def prepare(self, pool: str) -> None:
        """Begin to ask for the streams of a pool, unless that has begun."""
        if pool not in self._preparing:
            self._preparing[pool] = self.tasks.start(await_streams(self._nats, self._js, pool, self._limits))
            self._preparing[pool].add_done_callback(lambda _: self._preparing.pop(pool, None))

    async def take(self, message: Msg) -> None:
        """Take an answer, or a part of one. Once it is whole, delete the work from the stream."""
        try:
            answer, body = Answer.read(message.data)
        except Malformed:
            return
        request = self._waiting.get(answer.number)
        if request is not None:
            whole = request.joined(answer, body)
            if whole is None:
                return
            if not request.answer.done():
                request.answer.set_result((answer, whole))
        if delivered := subjects.delivered(answer.receipt):
            self._answered.append(delivered)
            if len(self._answered) == 1:
                asyncio.get_running_loop().call_later(self._limits.delete_s, self._delete_soon)

    def _delete_soon(self) -> None:
        if self._answered:
            self.tasks.start(self._delete_answered())

    async def _delete_answered(self) -> None:
        """Delete the requests that have been answered: with the next one that is sent, or after a moment."""
        while self._answered:
            done = self._answered.pop()
            await self._delete(done.stream, done.sequence)

    async def _delete(self, stream: str, sequence: int) -> None:
        """Delete a message. An acknowledgement could also fetch the next one: gateways may not."""
        with suppress(NatsError):
            what = json.dumps({"seq": sequence, "no_erase": True}).encode()
            await self._nats.publish(f"$JS.API.STREAM.MSG.DELETE.{stream}", what)

    async def _withdraw(self, request: Request) -> None:
        """Delete a request that no worker has fetched, and tell a worker that computes it."""
        with suppress(NatsError, TimeoutError):
            async with asyncio.timeout(self._limits.confirm_s):
                await self._nats.publish(subjects.cancelled(request.pool), Cancel(self._name, request.number).packed())
                await self._delete(subjects.stream(request.pool), await request.stored)
        self._unconfirmed.pop(request.inbox, None)

    # All requests

    async def send_again(self) -> None:
        """Send the requests that wait as new messages: workers may have dropped them."""
        for request in [*self._waiting.values()]:
            if not request.answer.done():
                await self._send_new(request)

    def refuse_removed(self) -> None:
        """Answer the requests for models that are removed: no worker fetches them any more."""
        now, seen = time.monotonic(), self._removed_at
        asked = {(request.pool, request.model) for request in self._waiting.values()}
        self._removed_at = {each: seen.get(each, now) for each in asked if self._pools.is_removed(*each)}
        for number, request in self._waiting.items():
            since = self._removed_at.get((request.pool, request.model), now)
            if now - since >= self._limits.removed_s and not request.answer.done():
                answer = Answer(number, self._name, NOT_FOUND, unknown_model(request.model))
                request.leaves_message = True
                request.answer.set_result((answer, b""))
