"""Connections to the controller, bounded in number.

At the limit, the connections that have waited longest without a request in progress are closed to let new ones in.
Clients that hold connections, or send their requests byte by byte, therefore shut out no other client, and the
process keeps descriptors for its own files. aiohttp gets a connection when the head of a request is there: until then
a connection costs little, so that thousands can be accepted and closed in a second.
"""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from aiohttp import web

# Maximum number of connections, and their maximum share of the descriptors that the process may have.
MAX_CONNECTIONS = 256
MAX_SHARE = 1 / 4

# Seconds in which the first head of a request must be complete, and between two looks at an incomplete one.
HEAD_S = 10.0
LOOK_S = 0.05

# aiohttp refuses a longer head.
MAX_HEAD_BYTES = 16 * 1024
END_OF_HEAD = b"\r\n\r\n"

# Connections accepted in one turn of the event loop.
PER_TURN = 32

# Length of the kernel's queue of connections to accept.
BACKLOG = 2048

# Pause in seconds where no connection can be accepted now.
PAUSE_S = 0.1

Factory = Callable[[], asyncio.BaseProtocol]


class _Unread:
    """A connection on which no request has arrived. It is given to `ready` with the first head still unread."""

    def __init__(self, connection: socket.socket, ready: Callable[[socket.socket], None]) -> None:
        self._connection = connection
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(HEAD_S, self.abort)
        self._next_look: asyncio.TimerHandle | None = None
        self._await_bytes()

    def is_closing(self) -> bool:
        return self._connection.fileno() < 0

    def abort(self) -> None:
        self._leave()
        self._connection.close()

    def _await_bytes(self) -> None:
        self._loop.add_reader(self._connection, self._look)

    def _look(self) -> None:
        try:
            head = self._connection.recv(MAX_HEAD_BYTES, socket.MSG_PEEK)
        except OSError:
            head = b""
        if not head:
            self.abort()
        elif END_OF_HEAD in head or len(head) == MAX_HEAD_BYTES:
            self._leave()
            self._ready(self._connection)
        else:
            self._loop.remove_reader(self._connection)
            self._next_look = self._loop.call_later(LOOK_S, self._await_bytes)

    def _leave(self) -> None:
        self._timer.cancel()
        if self._next_look is not None:
            self._next_look.cancel()
        self._loop.remove_reader(self._connection)


class Connections:
    """The open connections of a web application. The thread of its event loop owns this object."""

    def __init__(self, limit: int = 0) -> None:
        """At most `limit` connections; 0 chooses by the number of descriptors that this process may have."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit or min(MAX_CONNECTIONS, int(descriptors * MAX_SHARE))
        # By descriptor; the one that has waited longest for a request comes first.
        self._waiting: dict[int, asyncio.Transport | _Unread] = {}
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
            # The answer is written first.
            asyncio.get_running_loop().call_soon(self._end_request, descriptor, transport)

    def _end_request(self, descriptor: int, transport: asyncio.Transport) -> None:
        if self._in_request.get(descriptor) is transport:
            del self._in_request[descriptor]
            self._wait(descriptor, transport)

    def _accept_some(self, listener: socket.socket, factory: Factory) -> None:
        if self._num_open >= self._limit:
            self._waiting = {descriptor: each for descriptor, each in self._waiting.items() if not each.is_closing()}
        try:
            for _ in range(PER_TURN):
                if self._num_open >= self._limit and not self._waiting:
                    raise OSError("requests are in progress on all connections")
                connection, _ = listener.accept()
                connection.setblocking(False)
                self._wait(connection.fileno(), _Unread(connection, partial(self._begin, factory)))
                self._make_room()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError:
            self.refuse(listener)
            asyncio.get_running_loop().call_later(PAUSE_S, self.accept, listener, factory)

    def _begin(self, factory: Factory, connection: socket.socket) -> None:
        self._waiting.pop(connection.fileno(), None)
        task = asyncio.create_task(self._open(factory, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, factory: Factory, connection: socket.socket) -> None:
        descriptor = connection.fileno()
        with suppress(OSError):
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(factory, connection)
            self._wait(descriptor, transport)

    def _wait(self, descriptor: int, transport: asyncio.Transport | _Unread) -> None:
        self._waiting.pop(descriptor, None)
        if not transport.is_closing() and self._in_request.get(descriptor) is not transport:
            self._waiting[descriptor] = transport

    def _make_room(self) -> None:
        """Close the connection that has waited longest, if there is one too many."""
        if self._num_open > self._limit:
            self._waiting.pop(next(iter(self._waiting))).abort()

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self._in_request) + len(self._opening)
