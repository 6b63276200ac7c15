"""Messages that clients are sending to the gateway's gRPC.

gRPC core gathers a message, and tells its size only once it is complete. So the memory of the process is measured while
messages arrive, and those that are not complete give way.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from grpc import aio

from sie_triton.cluster.limits import GatewayLimits
from sie_triton.errors import BusyError, DeadlinePassed, InputError
from sie_triton.system.host.process_memory import private_bytes


class Arrival:
    """A message that is not complete."""

    __slots__ = ("is_cut", "limit")

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.limit = limit
        self.is_cut = False

    def cut(self) -> None:
        """End the call with BusyError."""
        if not self.limit.expired():
            self.is_cut = True
            self.limit.reschedule(0)


class Receiving:
    """Receives messages. Belongs to one event loop.

    `max_bytes`: growth of the process's memory, in bytes, from which messages that are not complete are given up.
    `measure` returns the memory of the process. One message too many ends the oldest: a client can begin many.
    """

    def __init__(
        self,
        max_bytes: int,
        measure: Callable[[], int] = private_bytes,
        limits: GatewayLimits = GatewayLimits(),
    ) -> None:
        self._measure, self._limits = measure, limits
        self._most = measure() + max_bytes
        self._arriving: dict[Arrival, None] = {}  # oldest first
        self._seen: list[Arrival] = []

    async def message(self, context: Any) -> bytes:
        """Return the message of a call.

        Raise BusyError if its place or its memory is needed, and DeadlinePassed if it does not arrive in time.
        """
        if len(self._arriving) >= self._limits.max_receiving:
            next(iter(self._arriving)).cut()
        arrival = Arrival(asyncio.timeout(self._limits.receive_s))
        try:
            async with arrival.limit:
                return await self._read(context, arrival)
        except TimeoutError as exc:
            if arrival.is_cut:
                raise BusyError("the gateway needed the memory of the request before it had arrived; retry") from exc
            raise DeadlinePassed(f"timeout: the request did not arrive within {self._limits.receive_s:g} s") from exc

    async def _read(self, context: Any, arrival: Arrival) -> bytes:
        self._arriving[arrival] = None
        try:
            message = await context.read()
        finally:
            del self._arriving[arrival]
        if message is aio.EOF:
            raise InputError("the call has no message")
        data: bytes = message
        return data

    def look(self) -> None:
        """Give up the messages that have been arriving since the last look, if the process takes too much memory."""
        if self._measure() > self._most:
            for each in self._seen:
                if each in self._arriving:
                    each.cut()
        self._seen = list(self._arriving)
