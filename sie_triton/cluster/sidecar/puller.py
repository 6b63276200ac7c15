"""Fetches the work of one model: a sidecar always has a request for more with the queue while its Triton has room.

small messages   come several at a time
large messages   come one at a time, once there is memory for any message; the queue tells that one is the next
"""

import asyncio
import json
import logging
from contextlib import suppress
from time import monotonic

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sie_triton.cluster.connection import next_of, open_consumer, told
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar.runner import Runner

log = logging.getLogger(__name__)

# Statuses of requests that ended in time, or found no work (NATS ADR-37).
OVER = ("404", "408")

# Description of a request that ended because the next message is larger than its bytes.
TOO_LARGE = "Message Size Exceeds MaxBytes"


class Puller:
    """Fetches the work of `model` for a runner. Belongs to one event loop."""

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        pool: str,
        model: str,
        runner: Runner,
        limits: SidecarLimits = SidecarLimits(),
    ) -> None:
        self.model, self._limits = model, limits
        self._last_work_at = monotonic()
        self._num_open = 0
        self._nats, self._js, self._pool, self._runner = client, js, pool, runner
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._num_asked, self._heard_at = 0, 0.0
        self._is_next_large = False
        self._is_leaving = False

    async def start(self) -> None:
        """Begin to fetch; raise an error of NATS if that is not possible now."""
        await open_consumer(self._js, self._pool, self.model, self._limits)
        self._subscription = await self._nats.subscribe(self._inbox, cb=self._receive)
        await self.pull()

    def leave(self) -> None:
        """Fetch no more. What has been asked for still comes, until `has_left`."""
        self._is_leaving = True
        self._expect(self._num_asked)

    def stay(self) -> None:
        self._is_leaving = False

    @property
    def idle_s(self) -> float:
        """Time since the last work of the model, in seconds; 0 while there is some."""
        return 0.0 if self._num_open else monotonic() - self._last_work_at

    @property
    def has_left(self) -> bool:
        """True once nothing more can come."""
        return self._is_leaving and (not self._num_asked or self._is_lost)

    @property
    def _is_lost(self) -> bool:
        """True if the queue has no request for work of this sidecar any more, and has not said so."""
        silent_s = self._limits.pull_heartbeat_s * self._limits.max_missing_heartbeats
        return monotonic() - self._heard_at > silent_s

    async def close(self) -> None:
        self._expect(0)
        if self._subscription is not None:
            with suppress(NatsError):
                await self._subscription.unsubscribe()

    async def pull(self) -> None:
        """Ask for as much work as there is room for, unless half of that has been asked for."""
        if self._num_asked and self._is_lost:
            self._expect(0)
        if self._is_leaving or self._subscription is None:
            return
        if self._is_next_large:
            await self._pull_large()
            return
        room, others = self._runner.room, self._runner.num_asked - self._num_asked
        limits, few = self._limits, self._limits.min_batch
        wanted = min(room, limits.max_batch, few + self._num_open, max(few, room - others))
        if wanted and self._num_asked * 2 <= wanted:
            await self._ask(wanted - self._num_asked, limits.pull_s, max_bytes=limits.small_bytes)

    async def _pull_large(self) -> None:
        """Ask for one message of any size, once there is memory for it, and what has been asked for has ended."""
        if self._num_asked or not self._runner.memory.take_in_turn(self, self._nats.max_payload):
            return
        if self._runner.places:
            await self._ask(1, self._limits.pull_large_s)

    async def _ask(self, num: int, expires_s: float, **limits: int) -> None:
        self._expect(self._num_asked + num)
        self._heard_at = monotonic()
        times = {"expires": int(expires_s * 1e9), "idle_heartbeat": int(self._limits.pull_heartbeat_s * 1e9)}
        request = json.dumps({"batch": num, **limits, **times}).encode()
        with suppress(NatsError):
            await self._nats.publish(next_of(self._pool, self.model), request, reply=self._inbox)

    def _expect(self, num: int) -> None:
        """Note how many messages are still to come. If none is, no memory is held for it."""
        self._runner.num_asked += num - self._num_asked
        self._num_asked = num
        if not num:
            self._runner.memory.release(self)

    async def ask_again(self) -> None:
        """Ask anew after the connection was lost, and with it all requests for work."""
        self._expect(0)
        await self.pull()

    async def _receive(self, message: Msg) -> None:
        self._heard_at = monotonic()
        headers = message.headers or {}
        status, description = headers.get("Status"), headers.get("Description", "")
        if status is None:
            self._expect(max(0, self._num_asked - 1))
            self._is_next_large = False
            self._num_open += 1
            self._runner.start(message, self._pool).add_done_callback(self._ended)
        elif status in OVER or description in ("Batch Completed", TOO_LARGE):
            self._expect(max(0, self._num_asked - int(headers.get("Nats-Pending-Messages", self._num_asked))))
            # If some of its bytes were used, the next message may still be small.
            small_bytes = self._limits.small_bytes
            left_bytes = int(headers.get("Nats-Pending-Bytes", small_bytes))
            is_large = description == TOO_LARGE and left_bytes >= small_bytes
            self._is_next_large = is_large or (self._is_next_large and status not in OVER)
        elif status != "100":
            log.info("queue: %s: %s %s", self.model, status, description)
            self._expect(0)
            await self._remake()
        await self.pull()

    def _ended(self, _: object) -> None:
        self._num_open -= 1
        self._last_work_at = monotonic()

    async def _remake(self) -> None:
        await asyncio.sleep(0.2)
        try:
            await open_consumer(self._js, self._pool, self.model, self._limits)
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: %s: %s", self.model, told(exc))
