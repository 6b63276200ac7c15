"""Runs fetched work: a call of Triton, its answer to the gateway, and what happens if neither is possible.

message → (still in progress here) → goes on
        → (too late, withdrawn, its gateway gone) → Dropped: acknowledged
        → (no memory for it, its gateway silent) → Returned: back to the queue, after a pause
        → Triton → answer; the gateway deletes the message once it has all parts
                 → busy, away, being replaced → Returned
                 → ended while it ran the request: sent anew; the second time to stream SIE_DEAD, and an error

What a killed sidecar leaves comes again (`deliveries.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from time import monotonic

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sie_triton.client.failures import END_OF_FRAMING, FRAMING, UNHEALTHY, was_reached
from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster import subjects
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import (
    INTERNAL,
    INVALID,
    NOT_FOUND,
    UNAVAILABLE,
    Answer,
    Cancel,
    Malformed,
    with_parameters,
)
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.sidecar.deliveries import (
    BACK,
    DONE,
    IN_PROGRESS,
    NO_WORK,
    Delivery,
    Dropped,
    Gateways,
    Receipts,
    Returned,
    give_back,
)
from sie_triton.cluster.sidecar.joining import Joiner, Sent
from sie_triton.cluster.sidecar.memory import Memory
from sie_triton.cluster.sidecar.metrics import WORK
from sie_triton.cluster.sidecar.pace import Pace
from sie_triton.cluster.sidecar.server import LocalServer, Response, is_away
from sie_triton.contract.error_prefix import with_prefix, without_prefix
from sie_triton.errors import BusyError, InputError, ModelError
from sie_triton.models.weights.object_store import StoreError
from sie_triton.records.calls import CallLost, unless_lost
from sie_triton.settings import Settings

log = logging.getLogger(__name__)


# Calls of Triton at a time for each model, on a GPU and on a CPU.
CALLS = 4, 1


class Runner:
    """Runs work at the Triton of `server`. Belongs to one event loop. `worker` is the name in answers.

    `when_free` is called when there is room again. `num_asked` is the number of messages that all pullers have asked
    for and that have not come.
    """

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        server: LocalServer,
        settings: Settings,
        worker: str,
        limits: SidecarLimits = SidecarLimits(),
    ) -> None:
        self._nats, self._js, self._server, self._worker, self._limits = client, js, server, worker, limits
        self.receipts = Receipts(settings.data_dir)
        self.payloads = Payloads(url, limits) if (url := settings.payload_store_url) else None
        self.gateways = Gateways(limits)
        self.pace = Pace(settings, limits)
        self._joiner = Joiner(
            server,
            limits,
            max_calls=settings.max_concurrent_batches or CALLS[settings.devices == ["cpu"]],
            max_requests=settings.batcher_max_batch_requests,
            call_s=self.pace.longest_call_s,
            gather_s=self.pace.gather_s,
        )
        self.when_free: Callable[[], object] = lambda: None
        self.memory = Memory.of_machine(lambda: self.when_free(), limits)
        self.num_asked = 0
        self.is_draining = False
        self.is_able = False  # Triton is ready
        self._open: dict[tuple[str, int], Delivery] = {}
        self._alone = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # A delivery's way, in order

    def start(self, message: Msg, pool: str) -> "asyncio.Task[None]":
        """Run the work of a message; return at once."""
        task = asyncio.create_task(self._run(message, pool))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _run(self, message: Msg, pool: str) -> None:
        try:
            delivery = Delivery.of(message, pool, self._server.calls.call())
        except (Malformed, InputError) as exc:
            log.warning("queue: dropped a message: %s", exc)
            await self._publish(message.reply, NO_WORK)
        else:
            WORK.labels(await self._outcome(delivery)).inc()

    async def _outcome(self, delivery: Delivery) -> str:
        """Run a delivery, reply to it, and return what became of it, in a word."""
        try:
            if self._continues(delivery):
                return "repeated"
            self._admit(delivery)
            with self._in_progress(delivery) as token:
                body = await self._body(delivery)
                response = await self._called(delivery, body, token)
                return await self._concluded(delivery, body, response)
        except Dropped:
            await self._publish(delivery.receipt, DONE)
            return "withdrawn" if delivery.was_withdrawn else "dropped"
        except Returned as exc:
            await self._return(delivery, exc.pause_s)
            return "returned"
        except InputError as exc:
            await self._answer(delivery, Response(INVALID, with_prefix(exc), b""))
            return "failed"

    def _continues(self, delivery: Delivery) -> bool:
        """Return True if the queue delivers again what is still in progress, because it had no word of it."""
        running = self._open.get(delivery.work.key)
        if running is None or running.sequence != delivery.sequence:
            return False
        running.receipt = delivery.receipt
        return True

    def _admit(self, delivery: Delivery) -> None:
        """Raise Dropped or Returned unless the work of a delivery should be run here and now."""
        work = delivery.work
        if self.is_draining:
            raise Returned(self._limits.away_pause_s)
        if work.key in self._open:  # as another message
            raise Dropped
        self.gateways.check(work)
        if self.memory.is_spent:  # by what other pullers have asked for
            raise Returned
        self.pace.note(work.tenant)

    @contextmanager
    def _in_progress(self, delivery: Delivery) -> Iterator[dict[str, str]]:
        """Context of work in progress: gives the token of its call, as parameters; afterwards its memory is free."""
        key = delivery.work.key
        with delivery.call as token, self.receipts.kept(delivery.receipt):
            self._open[key] = delivery
            try:
                yield token
            finally:
                if self._open.get(key) is delivery:  # else it goes on as another message, which is here already
                    del self._open[key]
                self.memory.release(delivery)

    async def _body(self, delivery: Delivery) -> bytes:
        """Return the request, once there is memory for it. Raise InputError if this machine never has as much."""
        payload = delivery.work.payload
        if not payload:
            self.memory.take(delivery, len(delivery.body))
            return delivery.body
        try:
            if self.payloads is None:
                raise StoreError("this sidecar has none (SIE_PAYLOAD_STORE_URL)")
            num_bytes = await self.payloads.size(payload)
            if num_bytes is not None:
                await self.memory.wait_for(delivery, num_bytes)
                body = await self.payloads.get(payload, num_bytes)
                if body is not None:
                    return body
        except StoreError as exc:
            log.warning("payload store: %s", exc)
            raise Returned(self._limits.away_pause_s) from exc
        except BusyError as exc:
            raise Returned from exc
        raise Dropped  # its gateway has removed it: nobody waits

    async def _called(self, delivery: Delivery, body: bytes, token: Mapping[str, str]) -> Response:
        """Call Triton: joined with other requests, or, after it ended a Triton, alone."""
        work = delivery.work
        async with self._alone if work.num_deaths else nullcontext():
            if work.num_deaths and not self.is_able:  # the Triton that ends must not count twice
                raise Returned(self._limits.away_pause_s)
            left_s = min(self.gateways.left_s(work), NETWORK_TIMEOUT_S)
            if left_s <= 0:
                raise Dropped
            request = with_parameters(body, {"timeout": max(1, int(left_s * 1e6)), **token})
            delivery.waited_ms = (monotonic() - delivery.received_at) * 1000
            try:
                async with unless_lost(delivery.call):
                    seconds = left_s + self._limits.triton_grace_s
                    if work.num_deaths:
                        return await self._server.triton.call("ModelInfer", request, seconds)
                    line = self.pace.line(work, (each.work for each in self._open.values()))
                    return await self._joiner.call(line, Sent(request), seconds, delivery.await_response)
            except CallLost as exc:
                return Response(INTERNAL, f"{exc} (it {UNHEALTHY})", b"")

    async def _concluded(self, delivery: Delivery, body: bytes, response: Response) -> str:
        """Answer a delivery, and return its outcome, unless another worker, or another try, should answer it."""
        if delivery.was_withdrawn:
            raise Dropped
        if is_away(response):
            if not was_reached(response.text):
                raise Returned(self._limits.away_pause_s)
            self.is_able = False  # until the next heartbeat finds a Triton that is ready
            return await self._after_death(delivery, body)
        if self._should_return(delivery, response):
            raise Returned
        await self._answer(delivery, response)
        self.pace.take_wait(response, self.num_open)
        return "answered" if response.is_ok else "failed"

    def _should_return(self, delivery: Delivery, response: Response) -> bool:
        """Return True if another try, here or elsewhere, may have another result and still comes in time."""
        left_s, pause_s = self.gateways.left_s(delivery.work), self._limits.busy_pause_s
        # gRPC's text about bytes that are no message: the gateway reads the name and the parameters only.
        if response.is_ok or response.text == "Unable to parse request" or left_s < pause_s:
            return False
        text = response.text
        error = without_prefix(text.partition(END_OF_FRAMING)[2] if text.startswith(FRAMING) else text)
        if error is not None:
            return type(error) is BusyError
        if response.status == UNAVAILABLE:
            return True
        # A stage that died, or a model that is being replaced: Triton's own texts.
        return response.status in (INTERNAL, NOT_FOUND) and delivery.num_deliveries < self._limits.max_error_deliveries

    async def _after_death(self, delivery: Delivery, body: bytes) -> str:
        """Give a request that may have ended its Triton to another one, alone; the second time put it aside."""
        pool, work = delivery.pool, delivery.work
        again = replace(work, num_deaths=work.num_deaths + 1)
        is_dead = again.num_deaths >= self._limits.max_triton_deaths
        self._open.pop(again.key, None)  # what is sent anew is no double
        try:
            if again.payload:
                assert self.payloads is not None
                if is_dead:
                    again = replace(again, payload=await self.payloads.keep(*again.key, body))
                body = b""
            subject = subjects.dead(pool, again.model) if is_dead else subjects.work(pool, again.model)
            await self._js.publish(subject, again.packed(body))
        except (NatsError, TimeoutError, StoreError) as exc:
            raise Returned(self._limits.away_pause_s) from exc
        if not is_dead:
            await self._publish(delivery.receipt, DONE)
            return "returned"
        log.error(
            "a request of gateway %s for %s ended two Tritons; it is in stream SIE_DEAD", again.gateway, again.model
        )
        died = ModelError("the request ended the server that ran it, twice; it was put aside, and is not run again")
        await self._answer(delivery, Response(INTERNAL, with_prefix(died), b""))
        return "dead"

    async def _answer(self, delivery: Delivery, response: Response) -> None:
        number, waited_ms = delivery.work.number, round(delivery.waited_ms, 3)
        answer = Answer(number, self._worker, response.status, response.text, waited_ms, delivery.receipt)
        for part in answer.parts(response.body, self._nats.max_payload - 1024):  # subject and protocol around it
            await self._publish(subjects.answers(delivery.work.gateway), part)

    async def _return(self, delivery: Delivery, pause_s: float | None) -> None:
        """Return work to the queue, which delivers it again after a pause.

        Without `pause_s`, the pause grows with each delivery, up to the time that is left until the deadline.
        """
        if pause_s is None:
            growing_s = self._limits.busy_pause_s * 2 ** min(10, delivery.num_deliveries - 1)
            pause_s = max(0.0, min(growing_s, self._limits.max_pause_s, self.gateways.left_s(delivery.work)))
        await self._publish(delivery.receipt, b'%b {"delay": %d}' % (BACK, int(pause_s * 1e9)) if pause_s else BACK)

    async def _publish(self, subject: str, data: bytes) -> None:
        """Publish an answer or receipt. If that fails, the queue gives the work to a worker again."""
        with suppress(NatsError):
            await self._nats.publish(subject, data)

    # All work

    @property
    def num_open(self) -> int:
        return len(self._tasks)

    @property
    def places(self) -> int:
        """Number of requests that Triton can take now."""
        return 0 if self.is_draining or not self.is_able else max(0, self.pace.most_open - self.num_open)

    @property
    def room(self) -> int:
        """Number of requests that Triton can take now, and for which there is memory."""
        return self.places if self.memory.has_room else 0

    async def report(self) -> None:
        """Tell the queue, for ever, which work is in progress. End the calls that Triton will not answer."""
        while True:
            await asyncio.sleep(self._limits.report_s)
            self._server.calls.end_lost()
            if self._nats.is_connected:
                self.receipts.reported()
            now = monotonic()
            for each in list(self._open.values()):
                if now - each.received_at >= self._limits.report_s:
                    await self._publish(each.receipt, IN_PROGRESS)

    async def withdraw(self, message: Msg) -> None:
        """Stop computing a request whose client no longer waits."""
        with suppress(Malformed):
            cancel, _ = Cancel.read(message.data)
            key = cancel.gateway, cancel.number
            self.gateways.withdraw(key)
            if found := self._open.get(key):
                found.withdraw()

    async def drained(self, seconds: float) -> None:
        """Return once no work is in progress, or after so many seconds. Work that arrives meanwhile is returned."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Stop all work, and return it to the queue."""
        left = [each.receipt for each in self._open.values()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # they clear the file of receipts
        await give_back(self._nats, left)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work failed", exc_info=error)  # the queue gives it to a worker again
        if self.num_open + 1 >= self.pace.most_open:  # else every model's work is being asked for
            self.when_free()
