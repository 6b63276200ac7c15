"""The gateway's gRPC port: limits of its connections and calls, and a server that is replaced if it ends by itself."""

import asyncio
import logging
from typing import Any

import grpc
from grpc import aio

from sie_triton.cluster.connection import MAX_AGE_S
from sie_triton.cluster.gateway.receiving import Receiving
from sie_triton.cluster.tasks import restarted_forever
from sie_triton.http.limits import ConnectionLimits
from sie_triton.settings import Settings

log = logging.getLogger(__name__)

# Calls at a time, and those of one connection; further ones are refused with RESOURCE_EXHAUSTED, or wait at the client.
MAX_CALLS, MAX_STREAMS = 20_000, 1024

# Age of a connection at which its client is told to open another one, in seconds. What goes on there then has the
# longest time of a request: a client cannot leave answers unread, and their memory taken, for ever.
MAX_CONNECTION_S = 3600

# Interval of looks at the server and at the memory of messages, in seconds.
LOOK_S = 0.1

# Shares of the process's descriptors: HTTP, gRPC, and a gRPC server that was replaced and still has calls.
SHARES = 3


def options(settings: Settings) -> list[tuple[str, int]]:
    """Return gRPC core's limits. docs/decisions/cluster.md, "The gateway's gRPC port", says what was tried."""
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", settings.door_max_body_bytes),
        ("grpc.http2.bdp_probe", 0),  # else a client may send megabytes of a message that nobody reads
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a few bytes would become a large message
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", settings.door_max_connections),
        ("grpc.server_handshake_timeout_ms", int(ConnectionLimits.head_timeout_s * 1000)),
        ("grpc.max_connection_idle_ms", ConnectionLimits.keep_alive_s * 1000),
        ("grpc.max_connection_age_ms", MAX_CONNECTION_S * 1000),
        ("grpc.max_connection_age_grace_ms", int(MAX_AGE_S * 1000)),
    ]


class Port:
    """The gRPC server on the gateway's address; several processes share its port. Belongs to one event loop."""

    def __init__(self, settings: Settings, handlers: grpc.GenericRpcHandler, receiving: Receiving) -> None:
        self._settings, self._handlers, self._receiving = settings, handlers, receiving
        self._servers: list[Any] = []  # the latest last

    async def start(self) -> None:
        await self._add_server()
        self._watching = asyncio.create_task(restarted_forever(self._watch))

    async def stop(self, grace_s: float) -> None:
        """Take no call any more, and return once those in progress have ended, or are cancelled after `grace_s`."""
        self._watching.cancel()
        await asyncio.gather(*(each.stop(grace_s) for each in self._servers))

    async def _add_server(self) -> None:
        server = aio.server(options=options(self._settings), maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers,))
        server.add_insecure_port(f"{self._settings.host}:{self._settings.grpc_port}")
        await server.start()
        self._servers.append(server)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
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
