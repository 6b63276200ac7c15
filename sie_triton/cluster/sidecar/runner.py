"""Runs fetched work: a call of Triton, its answer to the gateway, and what happens if neither is possible.

message → (too late, withdrawn, its gateway gone) → dropped
        → (no memory for it) → back to the queue, after a pause
        → Triton → answer
                 → busy, away, being replaced → back to the queue, after a pause
                 → ended while it ran the request, twice → stream SIE_DEAD, and an error
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from google.protobuf.message import DecodeError
from grpc import StatusCode
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from tritonclient.grpc import service_pb2

from sie_triton.client.failures import END_OF_FRAMING, FRAMING, UNHEALTHY, was_reached
from sie_triton.client.grpc_aio import InferResult
from sie_triton.client.results import timing_of
from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Cancel, Malformed, Work, with_parameters
from sie_triton.cluster.payloads import Payloads, Reads
from sie_triton.cluster.policies.fair import Tenants
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.cluster.sidecar.deliveries import AWAY_S, BUSY_S, Deliveries, num_delivered, sequence
from sie_triton.cluster.sidecar.gateways import Gateways
from sie_triton.cluster.sidecar.joiner import Joiner, Sent
from sie_triton.cluster.sidecar.memory import Memory
from sie_triton.cluster.sidecar.metrics import count_outcome, observe_wait
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.triton import GRACE_S, LocalTriton, Response, is_away
from sie_triton.contract.error_prefix import with_prefix, without_prefix
from sie_triton.errors import BusyError, InputError, ModelError, SIEError
from sie_triton.models.weights.object_store import StoreError
from sie_triton.records.calls import CallBook, CallLost, OpenCall, unless_lost

log = logging.getLogger(__name__)

# Interval of reports that work is still in progress, in seconds; well below ACK_WAIT_S.
REPORT_S = 1.0

# Deliveries after which an error that another worker might not have is the answer.
MAX_DELIVERIES_OF_AN_ERROR = 8

# A joined call may take so many times the target of the wait: shorter ones cost throughput.
CALLS_OF_TARGET = 2

# Tritons that a request may end.
MAX_TRITON_DEATHS = 2

# Responses of at most so many bytes are read for the time that their requests waited.
MAX_READ_BYTES = 64 * 1024

# gRPC's text about bytes that are no message of Triton's. The gateway reads the name and the parameters only.
UNPARSED = "Unable to parse request"

DIED = "the request ended the server that ran it, twice; it was put aside, and is not run again"

INTERNAL, NOT_FOUND, UNAVAILABLE, CANCELLED = (
    each.value[0] for each in (StatusCode.INTERNAL, StatusCode.NOT_FOUND, StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
)
INVALID = StatusCode.INVALID_ARGUMENT.value[0]


# In place of the response to a request that was withdrawn before its call.
WITHDRAWN = Response(CANCELLED, "withdrawn", b"")


@dataclass(slots=True, eq=False)
class _Open:
    """Work in progress, which holds memory. `was_withdrawn`: its client no longer waits.

    `waiting` is its response, while it waits.
    """

    receipt: str
    call: OpenCall
    since: float = field(default_factory=monotonic)
    was_withdrawn: bool = False
    waiting: asyncio.Future[Response] | None = None

    def wait_for(self, response: asyncio.Future[Response]) -> None:
        self.waiting = response

    def withdraw(self) -> None:
        self.was_withdrawn = True
        self.call.revoke()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(WITHDRAWN)


class Runner:
    """Runs work at one Triton. Belongs to one event loop. `when_free` is called when there is room again.

    `num_asked` is the number of messages that all pullers have asked for and that have not come.
    """

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        triton: LocalTriton,
        calls: CallBook,
        receipts: Receipts,
        *,
        worker: str,
        quantum: Quantum,
        coalesce_ms: float,
        max_calls: int,
        max_requests: int,
        payloads: Payloads | None,
    ) -> None:
        self._js, self._triton, self.calls = js, triton, calls
        self._receipts, self._payloads = receipts, payloads
        self._reads = None if payloads is None else Reads(payloads)
        self._tenants = Tenants()
        self.quantum, self._coalesce_ms = quantum, coalesce_ms
        self._call_s = CALLS_OF_TARGET * quantum.target_ms / 1000
        self._joiner = Joiner(
            triton,
            lambda: self.calls.call(),
            max_calls=max_calls,
            max_requests=max_requests,
            call_s=self._longest_call_s,
            gather_s=self._gather_s,
        )
        self.when_free: Callable[[], object] = lambda: None
        self.memory = Memory.of_machine(lambda: self.when_free())
        self.num_asked = 0
        self.is_draining = False
        self.is_able = False  # Triton is ready
        self._open: dict[tuple[str, int], _Open] = {}
        self.awaited = Gateways()
        self.deliveries = Deliveries(client, self.awaited, worker)
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        return len(self._tasks)

    @property
    def places(self) -> int:
        """Number of requests that Triton can take now."""
        return 0 if self.is_draining or not self.is_able else max(0, self.quantum.limit - self.num_open)

    @property
    def room(self) -> int:
        """Number of requests that Triton can take now, and for which there is memory."""
        return self.places if self.memory.has_room else 0

    def start(self, message: Msg, pool: str) -> "asyncio.Task[None]":
        """Run the work of a message; return at once."""
        task = asyncio.create_task(self._run(message, pool))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drained(self, seconds: float) -> None:
        """Return once no work is in progress, or after so many seconds. Work that arrives meanwhile is returned."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Stop all work; the queue gives it to another worker."""
        for task in self._tasks:
            task.cancel()

    async def report(self) -> None:
        """Tell the queue, for ever, which work is in progress. End the calls that Triton will not answer."""
        while True:
            await asyncio.sleep(REPORT_S)
            self.calls.end_lost()
            now = monotonic()
            for each in list(self._open.values()):
                if now - each.since >= REPORT_S:
                    await self.deliveries.report_progress(each.receipt)

    async def withdraw(self, message: Msg) -> None:
        """Stop computing a request whose client no longer waits."""
        with suppress(Malformed):
            cancel, _ = Cancel.read(message.data)
            key = cancel.gateway, cancel.number
            self.awaited.withdraw(key)
            if found := self._open.get(key):
                found.withdraw()

    async def _run(self, message: Msg, pool: str) -> None:
        try:
            work, body = Work.read(message.data)
            _check_names(work)
        except (Malformed, InputError) as exc:
            log.warning("queue: dropped a message: %s", exc)
            await self.deliveries.terminate(message)
            return
        message.data = b""  # the body is a copy, and a subscription keeps its latest message
        outcome = await self._outcome(message, pool, work, body)
        count_outcome(outcome)

    async def _outcome(self, message: Msg, pool: str, work: Work, body: bytes) -> str:
        """Run work, and return what became of it, in a word."""
        received = monotonic()
        if self.is_draining:
            await self.deliveries.give_back(message, AWAY_S)
            return "returned"
        if (running := self._open.get(work.key)) is not None:
            if sequence(running.receipt) == sequence(message.reply):
                running.receipt = message.reply  # the queue had no word of this work; it is still in progress
            else:
                await self.deliveries.acknowledge(message)  # sent twice
            return "dropped"
        if not self.awaited.is_awaited(work) or self.awaited.left_s(work) <= 0:
            await self.deliveries.acknowledge(message)
            return "dropped"
        if self.memory.is_spent:  # by what other pullers have asked for
            await self.deliveries.give_back_for_a_while(message, work)
            return "returned"
        if self._tenants.note(work.tenant):
            self.quantum.begin_anew()
        call = self.calls.call()
        with (
            call as token,
            self._receipts.kept(message.reply),
            self._registered(work, _Open(message.reply, call)) as current,
        ):
            if work.payload:
                try:
                    stored = await self._stored(work, current)
                except (StoreError, BusyError, InputError) as exc:
                    return await self._not_stored(message, work, exc)
                if stored is None:  # its gateway has removed it: nobody waits
                    await self.deliveries.acknowledge(message)
                    return "dropped"
                body = stored
            else:
                self.memory.take(current, len(body))
            async with self._alone if work.num_deaths else nullcontext():
                if work.num_deaths and not self.is_able:  # the Triton that ends must not count twice
                    await self.deliveries.give_back(message, AWAY_S)
                    return "returned"
                left_s = min(self.awaited.left_s(work), NETWORK_TIMEOUT_S)
                if left_s <= 0:
                    await self.deliveries.acknowledge(message)
                    return "dropped"
                request = with_parameters(body, {"timeout": max(1, int(left_s * 1e6)), **token})
                waited_ms = (monotonic() - received) * 1000
                try:
                    async with unless_lost(call):
                        response = await self._called(work, request, left_s + GRACE_S, current)
                except CallLost as exc:
                    response = Response(INTERNAL, f"{exc} (it {UNHEALTHY})", b"")
            if current.was_withdrawn:
                await self.deliveries.acknowledge(message)
                return "withdrawn"
            return await self._conclude(message, pool, work, body, response, waited_ms)

    async def _conclude(
        self, message: Msg, pool: str, work: Work, body: bytes, response: Response, waited_ms: float
    ) -> str:
        if is_away(response):
            if was_reached(response.text):  # it ended during the call
                self.is_able = False  # until the next heartbeat finds a Triton that is ready
                return await self._after_death(message, pool, work, body)
            await self.deliveries.give_back(message, AWAY_S)
            return "returned"
        if self._should_return(message, work, response):
            await self.deliveries.give_back_for_a_while(message, work)
            return "returned"
        await self.deliveries.answer(message, work, response, waited_ms)
        self._take_wait(response)
        return "answered" if response.is_ok else "failed"

    async def _called(self, work: Work, request: bytes, seconds: float, current: _Open) -> Response:
        if work.num_deaths:
            return await self._triton.call("ModelInfer", request, seconds)
        return await self._joiner.call((work.model, work.tenant), Sent(request), seconds, current.wait_for)

    async def _stored(self, work: Work, current: _Open) -> bytes | None:
        """Read a payload, once there is memory for it; None if its gateway has removed it."""
        if self._reads is None:
            raise StoreError("this sidecar has none (SIE_PAYLOAD_STORE_URL)")
        num_bytes = await self._reads.size(work.payload)
        if num_bytes is None:
            return None
        await self.memory.wait_for(current, num_bytes)
        return await self._reads.get(work.payload, num_bytes)

    async def _not_stored(self, message: Msg, work: Work, error: Exception) -> str:
        """Answer that a payload is too large; return work to the queue whose payload cannot be read now."""
        if isinstance(error, InputError):
            await self.deliveries.answer(message, work, Response(INVALID, with_prefix(error), b""), 0.0)
            return "failed"
        if isinstance(error, BusyError):
            await self.deliveries.give_back_for_a_while(message, work)
            return "returned"
        log.warning("payload store: %s", error)
        await self.deliveries.give_back(message, AWAY_S)
        return "returned"

    def _should_return(self, message: Msg, work: Work, response: Response) -> bool:
        """Return True if another try, here or elsewhere, may have another result and still comes in time."""
        if response.is_ok or response.text == UNPARSED or self.awaited.left_s(work) < BUSY_S:
            return False
        text = response.text
        error = without_prefix(text.partition(END_OF_FRAMING)[2] if text.startswith(FRAMING) else text)
        if error is not None:
            return type(error) is BusyError
        if response.status == UNAVAILABLE:
            return True
        # A stage that died, or a model that is being replaced: Triton's own texts.
        return response.status in (INTERNAL, NOT_FOUND) and num_delivered(message) < MAX_DELIVERIES_OF_AN_ERROR

    async def _after_death(self, message: Msg, pool: str, work: Work, body: bytes) -> str:
        """Give a request that may have ended its Triton to another one, alone; the second time put it aside."""
        again = work.after_death()
        self._open.pop(work.key, None)  # what is sent anew is no double
        try:
            if work.payload:
                assert self._payloads is not None
                if again.num_deaths >= MAX_TRITON_DEATHS:
                    again = replace(again, payload=await self._payloads.keep(*work.key, body))
                body = b""
            if again.num_deaths < MAX_TRITON_DEATHS:
                await self._js.publish(subjects.work(pool, work.model), again.packed(body))
                await self.deliveries.acknowledge(message)
                return "returned"
            await self._js.publish(subjects.dead(pool, work.model), again.packed(body))
        except (NatsError, TimeoutError, StoreError):
            await self.deliveries.give_back(message, AWAY_S)
            return "returned"
        log.error("a request of gateway %s for %s ended two Tritons; it is in stream SIE_DEAD", *_of(work))
        error = ModelError(DIED)
        await self.deliveries.answer(message, work, Response(INTERNAL, with_prefix(error), b""), 0.0)
        return "dead"

    @contextmanager
    def _registered(self, work: Work, current: _Open) -> Iterator[_Open]:
        self._open[work.key] = current
        try:
            yield current
        finally:
            self._close(work.key, current)
            self.memory.release(current)

    def _close(self, key: tuple[str, int], current: _Open) -> None:
        """Take work out of the table, unless other work of that key has taken its place."""
        if self._open.get(key) is current:
            del self._open[key]

    def _longest_call_s(self) -> float:
        return self._call_s if self._tenants.are_several else float("inf")

    def _gather_s(self) -> float:
        return (self._coalesce_ms + self.quantum.gather_ms) / 1000

    def _take_wait(self, response: Response) -> None:
        """Take the time that a request waited in Triton's queues and before its call."""
        if not response.is_ok or len(response.body) > MAX_READ_BYTES:
            return
        with suppress(SIEError, DecodeError, ValueError, KeyError):
            message = service_pb2.ModelInferResponse.FromString(response.body)
            timing: Any = timing_of(InferResult(message))
            wait_ms = timing["queue_ms"] + timing["batch_wait_ms"]
            # Requests of one tenant may wait for each other, and go in large calls: that has the best throughput.
            wait_ms += response.waited_s * 1000 if self._tenants.are_several else 0.0
            self.quantum.add(wait_ms, self.num_open >= self.quantum.limit)
            observe_wait(wait_ms)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work failed", exc_info=error)  # the queue gives it to a worker again
        if self.num_open + 1 >= self.quantum.limit:  # else every model's work is being asked for
            self.when_free()


def _check_names(work: Work) -> None:
    """Raise InputError if a name in the work cannot be part of a subject."""
    subjects.token(work.model)
    subjects.answers(work.gateway)


def _of(work: Work) -> tuple[str, str]:
    return work.gateway, work.model
