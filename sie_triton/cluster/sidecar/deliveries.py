"""Deliveries of the queue to a sidecar, and the replies to them: the answer to the gateway, and receipts to the queue.

A receipt says that work goes on, goes back or is finished. Its subject is the reply subject of the message
(NATS ADR-15).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Self

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sie_triton.cluster import subjects
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.cluster.statuses import CANCELLED
from sie_triton.records.calls import OpenCall

log = logging.getLogger(__name__)


class Dropped(Exception):
    """The work of a delivery is dropped, because nobody waits for it."""


class Returned(Exception):
    """Work goes back to the queue for `pause_s` seconds, or, with None, for longer after each delivery."""

    def __init__(self, pause_s: float | None = None) -> None:
        super().__init__(pause_s)
        self.pause_s = pause_s


@dataclass(slots=True, eq=False)
class Delivery:
    """A request that the queue has delivered, until the reply to it."""

    work: Work
    body: bytes
    # Name of the pool whose stream has the request.
    pool: str
    # Subject of receipts, of the latest delivery of this message.
    receipt: str
    # The call by which the stages know that its client still waits.
    call: OpenCall
    received_at: float = field(default_factory=monotonic)
    # Time until the call of Triton, in milliseconds.
    waited_ms: float = 0.0
    was_withdrawn: bool = False
    # The response, while the request waits for others to share their call.
    _response: asyncio.Future[Response] | None = None

    @classmethod
    def of(cls, message: Msg, pool: str, call: OpenCall) -> Self:
        """Read a message; raise Malformed or InputError if it is no work, or a name in it cannot be in a subject."""
        work, body = Work.read(message.data)
        subjects.token(work.model)
        subjects.answers(work.gateway)
        message.data = b""  # the body is a copy, and a subscription keeps its latest message
        return cls(work, body, pool, message.reply, call)

    @property
    def num_deliveries(self) -> int:
        """Number of times that the queue has delivered the message."""
        return int(_parts(self.receipt)[0])

    @property
    def sequence(self) -> str:
        """Number of the message in its stream."""
        return _parts(self.receipt)[1]

    def await_response(self, response: asyncio.Future[Response]) -> None:
        self._response = response

    def withdraw(self) -> None:
        """Have the stages drop the request, and end the wait for others to share their call."""
        self.was_withdrawn = True
        self.call.revoke()
        if self._response is not None and not self._response.done():
            self._response.set_result(Response(CANCELLED, "withdrawn", b""))


class Replies:
    """Replies to deliveries. Belongs to one event loop. `worker` is the name in answers."""

    def __init__(self, client: Client, worker: str, limits: SidecarLimits = SidecarLimits()) -> None:
        self._nats, self._worker, self._limits = client, worker, limits

    async def answer(self, delivery: Delivery, response: Response) -> None:
        """Answer the gateway. It deletes the work from the stream once it has all parts."""
        number, waited_ms = delivery.work.number, round(delivery.waited_ms, 3)
        answer = Answer(number, self._worker, response.status, response.text, waited_ms, delivery.receipt)
        for part in answer.parts(response.body, self._nats.max_payload - 1024):  # subject and protocol around it
            await self.publish(subjects.answers(delivery.work.gateway), part)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge work that no client waits for, or that goes on as another message."""
        await self.publish(delivery.receipt)

    async def terminate(self, message: Msg) -> None:
        """Have the queue forget a message that is no work."""
        await self.publish(message.reply, b"+TERM")

    async def report_progress(self, delivery: Delivery) -> None:
        """Tell the queue that work is in progress."""
        await self.publish(delivery.receipt, b"+WPI")

    async def give_back(self, delivery: Delivery, pause_s: float | None, left_s: float) -> None:
        """Return work to the queue, which delivers it again after a pause.

        Without `pause_s`, the pause grows with each delivery, up to the `left_s` seconds until the deadline.
        """
        if pause_s is None:
            growing_s = self._limits.busy_pause_s * 2 ** min(10, delivery.num_deliveries - 1)
            growing_s = min(self._limits.max_pause_s, growing_s)
            pause_s = max(0.0, min(growing_s, left_s))
        await self.publish(delivery.receipt, b'-NAK {"delay": %d}' % int(pause_s * 1e9) if pause_s else b"-NAK")

    async def give_all_back(self, receipts: Sequence[str]) -> None:
        """Return what a sidecar leaves, this one or that before it. If it had an answer, nothing happens."""
        for receipt in receipts:
            await self.publish(receipt, b"-NAK")
        if receipts:
            log.info("gave %d requests back that a sidecar leaves", len(receipts))

    async def publish(self, subject: str, data: bytes = b"") -> None:
        """Publish. If that fails, the queue gives the work to a worker again."""
        with suppress(NatsError):
            await self._nats.publish(subject, data)


def _parts(receipt: str) -> list[str]:
    """Return the parts of a receipt from the number of deliveries on (NATS ADR-15)."""
    parts = receipt.split(".")
    return parts[4:] if len(parts) == 9 else parts[6:]  # nine without a domain
