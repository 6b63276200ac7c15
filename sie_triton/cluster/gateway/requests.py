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

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, OutboundBufferLimitError
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import OwnJetStream, await_streams, told
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
FULL = frozenset({10077, 10047, 10122, 10028, 10023})


@dataclass(slots=True)
class Request:
    """A request that waits for its answer."""

    number: int
    pool: str
    model: str
    message: bytes
    answer: asyncio.Future[tuple[Answer, bytes]]
    # Sends the message until the stream confirms it.
    sending: asyncio.Task[PubAck] = field(init=False)
    # Number of messages that were made of it.
    sendings: int = 0
    # Parts of answers, by receipt and number.
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def fail(self, sending: asyncio.Task[PubAck]) -> None:
        """Pass on why the queue refuses the request."""
        if not sending.cancelled() and (error := sending.exception()) is not None and not self.answer.done():
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
        self._numbers = count(1)
        self._waiting: dict[int, Request] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._announced: dict[tuple[str, str], float] = {}
        self._removed_at: dict[tuple[str, str], float] = {}
        self.tasks = Tasks()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

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
        future: asyncio.Future[tuple[Answer, bytes]] = asyncio.get_running_loop().create_future()
        sent = self._waiting[number] = Request(number, pool, model, message, future)
        self._begin_to_send(sent)
        try:
            return await sent.answer
        except asyncio.CancelledError:
            self._withdraw(sent)
            raise
        finally:
            del self._waiting[number]
            if payload:
                self.tasks.start(self._remove(payload))
            if sent.sendings > 1 and not sent.answer.cancelled():
                self._withdraw(sent)  # a worker may have the other message, too
            elif not sent.sending.done() and not sent.answer.cancelled():
                self.tasks.start(self._confirmed(sent.sending))

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

    def _begin_to_send(self, request: Request) -> None:
        """Send a request, the second time as another message: a worker that still has the first drops that.

        A message that was not confirmed may have been stored and dropped, too: under its id it would be a double.
        """
        request.sendings += 1
        message_id = f"{self._name}.{request.number}"
        if request.sendings > 1:
            request.sending.cancel()
            message_id += f".{request.sendings}"
        request.sending = asyncio.create_task(self._send(request.pool, request.model, request.message, message_id))
        request.sending.add_done_callback(request.fail)

    async def _send(self, pool: str, model: str, message: bytes, message_id: str) -> PubAck:
        """Return the stream's confirmation; without one, send again. BusyError if the stream is full.

        What is sent while there is no connection would be kept, and sent with each repetition once there is one.
        """
        while True:
            while not self._nats.is_connected:
                await asyncio.sleep(self._limits.announce_s)
            try:
                # By this header a stream recognizes what it has already, for two minutes.
                return await self._js.publish(subjects.work(pool, model), message, headers={"Nats-Msg-Id": message_id})
            except APIError as exc:
                if exc.err_code in FULL or exc.code == 400:
                    raise BusyError(f"the queue is full ({told(exc)}); retry") from exc
                log.warning("queue: %s", told(exc))
            except NoStreamResponseError:
                self.prepare(pool)
            except MaxPayloadError as exc:
                raise InputError("the request is larger than the queue takes; send fewer or smaller items") from exc
            except OutboundBufferLimitError as exc:
                raise BusyError("the queue is away, and too many requests wait for it; retry") from exc
            except (NatsError, TimeoutError):
                pass
            metrics.UNSTORED.labels(pool).inc()
            await asyncio.sleep(self._limits.announce_s)

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
            # An acknowledgement could also fetch the next message: gateways may not.
            what = json.dumps({"seq": delivered.sequence, "no_erase": True}).encode()
            await self._nats.publish(f"$JS.API.STREAM.MSG.DELETE.{delivered.stream}", what)

    async def _confirmed(self, sending: asyncio.Task[PubAck]) -> None:
        """Wait for the confirmation of a request that has been answered; it is not sent again."""
        with suppress(NatsError, TimeoutError, BusyError, InputError):
            await asyncio.wait_for(sending, self._limits.confirm_s)

    def _withdraw(self, request: Request) -> None:
        self.tasks.start(self._withdrawn(request.pool, request.number, request.sending))

    async def _withdrawn(self, pool: str, number: int, sending: asyncio.Task[PubAck]) -> None:
        """Delete a request that no worker has fetched, and tell a worker that computes it."""
        with suppress(NatsError, TimeoutError, BusyError, InputError, asyncio.CancelledError):
            async with asyncio.timeout(self._limits.confirm_s):
                await self._nats.publish(subjects.cancelled(pool), Cancel(self._name, number).packed())
                confirmed = await sending
                await self._js.delete_msg(subjects.stream(pool), confirmed.seq)
        sending.cancel()

    def send_again(self) -> None:
        """Send the requests that wait as new messages: workers may have dropped them."""
        for request in self._waiting.values():
            if not request.answer.done():
                self._begin_to_send(request)

    def refuse_removed(self) -> None:
        """Answer the requests for models that are removed: no worker fetches them any more."""
        now, seen = time.monotonic(), self._removed_at
        asked = {(request.pool, request.model) for request in self._waiting.values()}
        self._removed_at = {each: seen.get(each, now) for each in asked if self._pools.is_removed(*each)}
        for number, request in self._waiting.items():
            since = self._removed_at.get((request.pool, request.model), now)
            if now - since >= self._limits.removed_s and not request.answer.done():
                answer = Answer(number, self._name, NOT_FOUND, unknown_model(request.model))
                request.answer.set_result((answer, b""))
                self._withdraw(request)
