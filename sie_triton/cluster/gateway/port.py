"""The gateway's gRPC port: limits of its connections, calls and memory, and a server that is replaced if it ends.

gRPC core gathers a message, and tells its size only once it is complete. So the memory of the process is measured while
messages arrive, and those that are not complete give way.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.tasks import restarted_forever
from sie_triton.errors import BusyError, DeadlinePassed, InputError
from sie_triton.settings import Settings
from sie_triton.system.host.process_memory import private_bytes

log = logging.getLogger(__name__)

# Shares of the process's descriptors: HTTP, gRPC, and a gRPC server that was replaced and still has calls.
SHARES = 3


def options(settings: Settings, limits: GatewayLimits = GatewayLimits()) -> list[tuple[str, int]]:
    """Return gRPC core's limits. docs/decisions/cluster.md, "The gateway's gRPC port", says what was tried."""
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", settings.door_max_body_bytes),
        ("grpc.http2.bdp_probe", 0),  # else a client may send megabytes of a message that nobody reads
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a few bytes would become a large message
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.max_allowed_incoming_connections", settings.door_max_connections),
        ("grpc.server_handshake_timeout_ms", int(limits.head_s * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.keep_alive_s * 1000)),
        # A client cannot leave answers unread, and their memory taken, for ever.
        ("grpc.max_connection_age_ms", int(limits.max_connection_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(limits.max_age_s * 1000)),
    ]


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


class Port:
    """The gRPC server on the gateway's address; several processes share its port. Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        handlers: grpc.GenericRpcHandler,
        receiving: Receiving,
        limits: GatewayLimits = GatewayLimits(),
    ) -> None:
        self._settings, self._handlers, self._receiving, self._limits = settings, handlers, receiving, limits
        self._servers: list[Any] = []  # the latest last

    async def start(self) -> None:
        await self._add_server()
        self._watching = asyncio.create_task(restarted_forever(self._watch, self._limits.restart_s))

    async def stop(self, grace_s: float) -> None:
        """Take no call any more, and return once those in progress have ended, or are cancelled after `grace_s`."""
        self._watching.cancel()
        await asyncio.gather(*(each.stop(grace_s) for each in self._servers))

    async def _add_server(self) -> None:
        server = aio.server(options=options(self._settings, self._limits), maximum_concurrent_rpcs=20_000)
        server.add_generic_rpc_handlers((self._handlers,))
        server.add_insecure_port(f"{self._settings.host}:{self._settings.grpc_port}")
        await server.start()
        self._servers.append(server)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._receiving.look()
            if (error := await _failure_of(self._servers[-1])) is not None:
                log.error("gRPC: the server ended (%s) and is replaced", type(error).__name__)
                await self._replace()

    async def _replace(self) -> None:
        """Start another server. The calls of the one that ended go on, those of one before it are cancelled."""
        try:
            await self._add_server()
        except RuntimeError as exc:  # until the next look
            log.error("gRPC: %s", exc)
            return
        while len(self._servers) > 2:
            await self._servers.pop(0).stop(None)


async def _failure_of(server: Any) -> Exception | None:
    """Return the error with which a server ended by itself, if it did.

    grpcio 1.85 lets a server end at a call whose method's name is not UTF-8.
    """
    try:
        await server.wait_for_termination(0)
    except Exception as exc:
        return exc
    return None
