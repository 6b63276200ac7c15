"""The gateway's side of the queue: it sends requests, waits for their answers, and acknowledges them.

submit → stream → sidecar → answer → receipt → stream forgets the request

The receipt is sent once the gateway has the whole answer. An answer that gets lost therefore leaves the request in the
stream, which gives it to another worker. A second answer finds nobody who waits; its receipt is sent too.
"""

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from grpc import StatusCode
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError, OutboundBufferLimitError
from nats.js.api import PubAck
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import MAX_AGE_S, connect, open_dead_stream, open_stream, told
from sie_triton.cluster.gateway.gate import Gate
from sie_triton.cluster.messages import Answer, Cancel, Health, Malformed, Question, Wanted, Work
from sie_triton.cluster.payloads import SWEEP_S, Payloads
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.cluster.policies.fair import window
from sie_triton.cluster.policies.quantum import FIRST_OPEN
from sie_triton.cluster.workers import MAX_MISSING, Workers
from sie_triton.contract import TASKS
from sie_triton.errors import BusyError, DeadlinePassed, InputError, Unreachable
from sie_triton.settings import Settings
from sie_triton.weights.object_store import StoreError

log = logging.getLogger(__name__)

# Age of what is known about the workers, in seconds: a look at all of them for each request would take too long.
SERVED_S = 0.2

# Headers, and metadata of gRPC, with which a request asks for a pool, or for a kind of machine.
POOL, PROFILE = "x-sie-pool", "x-sie-machine-profile"

# Beginning of the subjects that acknowledge work.
RECEIPTS = "$JS.ACK."

# Gateways whose heartbeats are listened to.
MAX_GATEWAYS = 1000

# Time for the stream to confirm a request, in seconds; then it is sent again. A double is answered once all the same.
CONFIRM_S = 2.0

# Time of one worker to answer a question, in seconds; then another one is asked.
TRY_S = 2.0

# Workers of which one question is asked.
MAX_ASKED = 1000

# gRPC's status of a Triton that is away or busy.
UNAVAILABLE = StatusCode.UNAVAILABLE.value[0]

# Interval between two announcements of a model that no worker serves, in seconds.
ANNOUNCE_S = 0.25

# Subjects and headers around a request's body, at most.
FRAME_BYTES = 4096

# Limit of the parts of an answer: 2 GiB at the usual size of NATS' messages.
MAX_PARTS = 2100

# Error codes of JetStream for a full stream: messages, bytes, and the account's storage.
FULL = frozenset({10077, 10047, 10122, 10028, 10023})


@dataclass(frozen=True, slots=True)
class Served:
    """What the workers of a pool serve.

    `limits` has the requests that the workers which have claimed a model may have open, `largest_limit` those of one
    worker.
    """

    models: frozenset[str]
    ensembles: frozenset[str]
    limits: Mapping[str, int]
    largest_limit: int
    at: float

    @classmethod
    def of(cls, workers: Sequence[Health], at: float) -> "Served":
        limits: Counter[str] = Counter()
        for each in workers:
            limits.update(dict.fromkeys(each.claims, each.limit if each.is_ready else 0))
        return cls(
            frozenset(name for each in workers for name in each.models),
            frozenset(name for each in workers for name in each.ensembles),
            limits,
            max((each.limit for each in workers if each.is_ready), default=FIRST_OPEN),
            at,
        )


@dataclass(slots=True)
class _Waiting:
    answer: asyncio.Future[tuple[Answer, bytes]]
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

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
        self._interval_s = settings.health_publish_interval_ms / 1000
        self.workers = Workers(self._interval_s)
        self._heard_since = time.monotonic()
        self._payloads = Payloads(settings.payload_store_url) if settings.payload_store_url else None
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._is_closing = False
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._gate = Gate(self._window)
        self._served: dict[str, Served] = {}
        self._gateways: dict[str, float] = {}
        self._announced: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._nats: Client
        self._js: JetStreamContext

    async def __aenter__(self) -> "Queue":
        self._nats = await connect(self._settings, GATEWAY, self.name, self._reconnected, self._closed)
        self._js = self._nats.jetstream(timeout=CONFIRM_S)
        await self._nats.subscribe(subjects.answers(self.name), cb=self._take)
        await self._nats.subscribe(subjects.ALL_WORKERS, cb=self.workers.hear)
        await self._nats.subscribe(subjects.ALL_GATEWAYS, cb=self._hear_gateway)
        self._heard_since = time.monotonic()
        self._prepare(self._settings.pool)
        self._start(self._live())
        if self._payloads is not None:
            self._start(self._sweep(self._payloads))
        return self

    async def _reconnected(self) -> None:
        self._heard_since = time.monotonic()

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
    def num_waiting(self) -> int:
        return len(self._waiting) + self._gate.num_waiting

    def pool(self, asked: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the pool for a request, by its headers POOL and PROFILE; without them the gateway's own.

        Raise InputError for a name that cannot be a pool's, and Unreachable if no worker is in it.
        """
        name, profile = asked.get(POOL, ""), asked.get(PROFILE, "")
        if name:
            subjects.checked_name(name, POOL)
        elif profile:
            of_profile = [each.pool for each in self.workers.all() if each.profile == profile]
            if not of_profile:
                raise Unreachable(f"{PROFILE}: no worker is a {profile[:64]!r}; retry once one has started")
            return min(of_profile)
        if name and name != self._settings.pool and not self.workers.alive(name):
            pools = ", ".join(self.workers.pools()) or "none"
            raise Unreachable(
                f"{POOL}: pool {name} has no worker; pools with workers: {pools}; retry once one has started"
            )
        return name or self._settings.pool

    def serves(self, pool: str) -> "Served":
        """Return what the workers of a pool serve, as of SERVED_S ago at most."""
        now = time.monotonic()
        found = self._served.get(pool)
        if found is None or now - found.at >= SERVED_S:
            found = self._served[pool] = Served.of(self.workers.alive(pool), now)
        return found

    def model_of(self, pool: str, ensemble: str) -> str:
        """Return the model of an ensemble; empty if no worker of the pool serves it.

        Raise Unreachable if there is no worker, or if not all of them can have told this gateway about themselves.
        """
        served = self.serves(pool)
        if ensemble in served.models:
            return ensemble
        name, _, task = ensemble.rpartition("-")
        if ensemble in served.ensembles and task in TASKS and name in served.models:
            return name
        if not served.models or time.monotonic() - self._heard_since < self._interval_s * MAX_MISSING:
            raise Unreachable(f"no worker of pool {pool} is known to serve {ensemble[:200]} yet; retry")
        return ""

    def is_served(self, pool: str, ensemble: str) -> bool:
        served = self.serves(pool)
        return ensemble in served.models or ensemble in served.ensembles

    def _window(self, pool: str, model: str) -> int:
        served = self.serves(pool)
        return window(served.limits.get(model, served.largest_limit), len(self._gateways) or 1)

    async def submit(
        self, pool: str, model: str, request: bytes, left_s: float, tenant: str = ""
    ) -> tuple[Answer, bytes]:
        """Return the answer to a ModelInferRequest, which has `left_s` seconds.

        Raise BusyError if the queue does not take it, or would not answer it in time, and DeadlinePassed if no answer
        comes in time. If this is cancelled, the request is taken out of the queue, or no longer computed.
        """
        subjects.token(model)
        left_s = min(left_s, MAX_AGE_S)
        deadline = time.time() + left_s
        try:
            async with asyncio.timeout(left_s), self._gate.turn(pool, model, tenant, left_s):
                return await self._answered(pool, model, request, deadline, tenant)
        except TimeoutError as exc:
            where = "" if self.is_connected else "; the gateway has no connection to its queue"
            raise DeadlinePassed(f"timeout: the request was not answered within {left_s:.3g} s{where}") from exc

    async def _answered(
        self, pool: str, model: str, request: bytes, deadline: float, tenant: str
    ) -> tuple[Answer, bytes]:
        number = next(self._numbers)
        payload = await self._stored(number, deadline, request)
        work = Work(self.name, number, deadline, model, 0, payload, tenant)
        message = work.packed(b"" if payload else request)
        waiting = self._waiting[number] = _Waiting(asyncio.get_running_loop().create_future())
        self._announce(pool, model)
        sending = asyncio.create_task(self._send(pool, model, message))
        try:
            both: set[asyncio.Future[Any]] = {sending, waiting.answer}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.answer.done():
                await sending  # raises if the queue refuses the request
            return await waiting.answer
        except asyncio.CancelledError:
            self._abandon(pool, number, sending)
            raise
        finally:
            del self._waiting[number]
            if payload:
                self._start(self._removed(payload))
            if not sending.done() and not waiting.answer.cancelled():
                self._start(self._confirmed(sending))
            elif sending.done() and not sending.cancelled():
                sending.exception()  # mark it as retrieved

    async def _stored(self, number: int, deadline: float, request: bytes) -> str:
        """Put a request into the payload store if no message can hold it; return its path there, else an empty one."""
        room = self._nats.max_payload - FRAME_BYTES
        if len(request) <= room:
            return ""
        if self._payloads is None:
            raise InputError(
                f"the request has {len(request)} bytes, and the queue takes {room}; send fewer or smaller items, or "
                "give the cluster a payload store (SIE_PAYLOAD_STORE_URL)"
            )
        try:
            return await self._payloads.put(self.name, number, deadline, request)
        except StoreError as exc:
            log.warning("payload store: %s", exc)
            raise BusyError("the payload store does not take the request; retry, or send smaller ones") from exc

    async def _removed(self, path: str) -> None:
        assert self._payloads is not None
        with suppress(StoreError):  # a gateway removes it later
            await self._payloads.remove(path)

    async def _sweep(self, payloads: Payloads) -> None:
        """Remove payloads that gateways have left behind, for ever."""
        while True:
            try:
                if num_removed := await payloads.sweep():
                    log.info("payload store: removed %d payloads whose time had passed", num_removed)
            except StoreError as exc:
                log.warning("payload store: %s", exc)
            await asyncio.sleep(SWEEP_S)

    async def ask(self, pool: str, method: str, request: bytes, left_s: float) -> tuple[Answer, bytes]:
        """Return the answer of any worker of the pool to a call of its Triton other than inference."""
        message, ends_at = Question(method).packed(request), time.monotonic() + left_s
        if len(message) + FRAME_BYTES > self._nats.max_payload:
            raise InputError(f"a request of {method} has {len(request)} bytes; that is too much")
        failure = ""
        while (seconds := min(TRY_S, ends_at - time.monotonic())) > 0:
            try:
                answered = await self._nats.request(subjects.questions(pool), message, timeout=seconds)
                answer, body = Answer.read(answered.data)
                if answer.status != UNAVAILABLE:  # else this worker's Triton is away
                    return answer, body
                failure = answer.text
            except NoRespondersError as exc:
                raise Unreachable(f"no worker of pool {pool} is there; retry") from exc
            except (NatsError, TimeoutError, Malformed) as exc:
                failure = type(exc).__name__
            await asyncio.sleep(ANNOUNCE_S)
        raise Unreachable(f"no worker of pool {pool} answers ({failure[:200]}); retry")

    async def ask_all(self, pool: str, method: str, request: bytes, left_s: float) -> list[tuple[Answer, bytes]]:
        """Return the answers of all ready workers of a pool; those that do not answer are left out."""
        message = Question(method).packed(request)
        subjects_of = [subjects.questions_of(pool, each.worker) for each in self.workers.alive(pool) if each.is_ready]
        asking = (self._nats.request(each, message, timeout=left_s) for each in subjects_of[:MAX_ASKED])
        answers = await asyncio.gather(*asking, return_exceptions=True)
        found = []
        for each in answers:
            if isinstance(each, Msg):
                with suppress(Malformed):
                    found.append(Answer.read(each.data))
        if not found:
            raise Unreachable(f"no worker of pool {pool} answers; retry")
        return found

    async def _send(self, pool: str, model: str, message: bytes) -> PubAck:
        """Return the stream's confirmation; without one, send again. BusyError if the stream is full."""
        while True:
            try:
                return await self._js.publish(subjects.work(pool, model), message)
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
        if model in self.serves(pool).limits:
            return
        self._announced[pool, model] = now
        self._start(self._nats.publish(subjects.wanted(pool), Wanted(model).packed()))

    async def _hear_gateway(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        if name in self._gateways or len(self._gateways) < MAX_GATEWAYS:
            self._gateways[name] = time.monotonic()

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
        if answer.receipt.startswith(RECEIPTS):
            await self._nats.publish(answer.receipt)

    def _prepare(self, pool: str) -> None:
        """Begin to make the streams of a pool, unless that has begun."""
        if pool not in self._preparing:
            task = self._preparing[pool] = asyncio.create_task(self._make_streams(pool))
            task.add_done_callback(lambda _: self._preparing.pop(pool, None))
            self._keep(task)

    async def _make_streams(self, pool: str) -> None:
        while True:
            try:
                await open_stream(self._js, pool, self._settings)
                await open_dead_stream(self._js, self._settings)
            except (NatsError, TimeoutError) as exc:
                log.warning("queue: no stream yet: %s", told(exc))
                await asyncio.sleep(CONFIRM_S)
            else:
                return

    async def _live(self) -> None:
        """Publish this gateway's heartbeat: workers drop the requests of one that is gone."""
        while True:
            with suppress(NatsError):
                await self._nats.publish(subjects.gateway_health(self.name), self.name.encode())
            stale = time.monotonic() - self._interval_s * MAX_MISSING
            self._gateways = {name: heard for name, heard in self._gateways.items() if heard >= stale}
            self._gate.look()
            with suppress(NatsError):
                for (pool, model), num in self._gate.waiting().items():
                    await self._nats.publish(subjects.wanted(pool), Wanted(model, num).packed())
            await asyncio.sleep(self._interval_s)

    def _start(self, work: Any) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NatsError):
            log.error("queue: %s: %s", type(error).__name__, error)
