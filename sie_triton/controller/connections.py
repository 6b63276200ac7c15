"""Connections to the controller, bounded in number.

At the limit, the connections that have waited longest without a request in progress are closed to let new ones in.
Clients that hold connections, or send their requests byte by byte, therefore shut out no other client, and the
process keeps descriptors for its own files.
"""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice

from aiohttp import web

# Maximum number of connections, and their maximum share of the descriptors that the process may have.
MAX_CONNECTIONS = 256
MAX_SHARE = 1 / 4

# Connections accepted, or closed to make room, in one turn of the event loop.
PER_TURN = 32

# Length of the kernel's queue of connections to accept.
BACKLOG = 2048

# Pause in seconds where no connection can be accepted now.
PAUSE_S = 0.1

Factory = Callable[[], asyncio.BaseProtocol]


class Connections:
    """The open connections of a web application. The thread of its event loop owns this object."""

    def __init__(self, limit: int = 0) -> None:
        """At most `limit` connections; 0 chooses by the number of descriptors that this process may have."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit or min(MAX_CONNECTIONS, int(descriptors * MAX_SHARE))
        # By descriptor; the one that has waited longest for a request comes first.
        self._waiting: dict[int, asyncio.Transport] = {}
        self._in_request: dict[int, asyncio.Transport] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def accept(self, listener: socket.socket, factory: Factory) -> None:
        """Accept connections from now on, and serve each with a protocol made by `factory`."""
        asyncio.get_running_loop().add_reader(listener, self._accept_some, listener, factory)

    def refuse(self, listener: socket.socket) -> None:
        """Accept no more connections."""
        asyncio.get_running_loop().remove_reader(listener)

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Keep the connection of a request that is being handled."""
        transport = request.transport
        if transport is None:
            return web.Response()  # the client has gone
        descriptor = transport.get_extra_info("socket").fileno()
        self._waiting.pop(descriptor, None)
        self._in_request[descriptor] = transport
        try:
            return await handler(request)
        finally:
            if self._in_request.get(descriptor) is transport:
                self._wait(descriptor, self._in_request.pop(descriptor))

    def _accept_some(self, listener: socket.socket, factory: Factory) -> None:
        try:
            for _ in range(PER_TURN):
                if not self._has_room():
                    raise OSError("requests are in progress on all connections")
                connection, _ = listener.accept()
                task = asyncio.create_task(self._open(connection, factory))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:
            self.refuse(listener)
            asyncio.get_running_loop().call_later(PAUSE_S, self.accept, listener, factory)

    async def _open(self, connection: socket.socket, factory: Factory) -> None:
        connection.setblocking(False)
        descriptor = connection.fileno()
        with suppress(OSError):
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
            self._wait(descriptor, transport)

    def _wait(self, descriptor: int, transport: asyncio.Transport) -> None:
        self._waiting.pop(descriptor, None)
        if not transport.is_closing() and self._in_request.get(descriptor) is not transport:
            self._waiting[descriptor] = transport

    def _has_room(self) -> bool:
        """Make room if there is none."""
        if self._num_open < self._limit:
            return True
        self._waiting = {descriptor: each for descriptor, each in self._waiting.items() if not each.is_closing()}
        if self._num_open >= self._limit:
            for descriptor in list(islice(self._waiting, PER_TURN)):
                self._waiting.pop(descriptor).abort()
        return self._num_open < self._limit

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self._in_request) + len(self._opening)
