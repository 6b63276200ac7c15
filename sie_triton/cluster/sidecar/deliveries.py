"""Replies of a sidecar to a delivery: the answer to the gateway, and the receipt to the queue.

A receipt says that work goes on, goes back or is finished; its subject is `message.reply` (NATS ADR-15).
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.sidecar.gateways import Gateways
from sie_triton.cluster.sidecar.triton import Response

log = logging.getLogger(__name__)

# Pause before work goes to a worker again, in seconds: Triton was busy, or away. It doubles up to MAX_PAUSE_S.
BUSY_S, AWAY_S, MAX_PAUSE_S = 0.2, 0.5, 3.2

# Subjects and protocol around a message, at most.
FRAME_BYTES = 1024

# Parts of a receipt without a domain.
SHORT_RECEIPT = 9


class Deliveries:
    """Belongs to one event loop. `worker` is the name in answers."""

    def __init__(self, client: Client, awaited: Gateways, worker: str) -> None:
        self._nats, self._awaited, self._worker = client, awaited, worker

    async def answer(self, message: Msg, work: Work, response: Response, waited_ms: float) -> None:
        """Answer the gateway. It deletes the work from the stream once it has all parts."""
        receipt = message.reply
        answer = Answer(work.number, self._worker, response.status, response.text, round(waited_ms, 3), receipt)
        for part in answer.parts(response.body, self._nats.max_payload - FRAME_BYTES):
            await self.publish(subjects.answers(work.gateway), part)

    async def acknowledge(self, message: Msg) -> None:
        """Acknowledge work that no client waits for, or that goes on as another message."""
        await self.publish(message.reply)

    async def terminate(self, message: Msg) -> None:
        """Have the queue forget a message that is no work."""
        await self.publish(message.reply, b"+TERM")

    async def report_progress(self, receipt: str) -> None:
        """Tell the queue that work is in progress."""
        await self.publish(receipt, b"+WPI")

    async def give_back(self, message: Msg, pause_s: float) -> None:
        """Return work to the queue, which delivers it again after a pause."""
        await self.publish(message.reply, b'-NAK {"delay": %d}' % int(pause_s * 1e9) if pause_s else b"-NAK")

    async def give_back_for_a_while(self, message: Msg, work: Work) -> None:
        """Return work for which there is no room now; the pause grows with each delivery."""
        pause_s = min(MAX_PAUSE_S, BUSY_S * 2 ** min(10, num_delivered(message) - 1))
        await self.give_back(message, max(0.0, min(pause_s, self._awaited.left_s(work))))

    async def give_all_back(self, receipts: Sequence[str]) -> None:
        """Return what the sidecar before this one has left. If that had an answer, nothing happens."""
        for receipt in receipts:
            await self.publish(receipt, b"-NAK")
        if receipts:
            log.info("gave %d requests back that a sidecar had left here", len(receipts))

    async def publish(self, subject: str, data: bytes = b"") -> None:
        """Publish. If that fails, the queue gives the work to a worker again."""
        with suppress(NatsError):
            await self._nats.publish(subject, data)


def num_delivered(message: Msg) -> int:
    """Return how often the queue has delivered a message."""
    return int(_parts(message.reply)[0])


def sequence(receipt: str) -> str:
    """Return the number in the stream of the message that a receipt belongs to."""
    return _parts(receipt)[1]


def _parts(receipt: str) -> list[str]:
    """Return the parts of a receipt from the number of deliveries on (NATS ADR-15)."""
    parts = receipt.split(".")
    return parts[4:] if len(parts) == SHORT_RECEIPT else parts[6:]
