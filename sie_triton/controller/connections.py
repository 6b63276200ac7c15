"""Connections to the controller, bounded in number.

At the limit, a new connection replaces the one that has been idle longest. Clients that hold connections open, or send
requests byte by byte, therefore lock out no other client, and the process keeps descriptors for its own files. aiohttp
gets a connection only once the head of a request is complete. Until then a connection is cheap: thousands can be
accepted and closed in a second.
"""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from aiohttp import web

# Maximum number of connections, and their maximum share of the process's descriptor limit.
MAX_CONNECTIONS = 256
MAX_SHARE = 1 / 4

# Timeout of the first head of a request, and polling interval of an incomplete one, in seconds.
HEAD_S = 10.0
LOOK_S = 0.05

# Maximum length of a head; aiohttp refuses longer ones.
MAX_HEAD_BYTES = 16 * 1024
END_OF_HEAD = b"\r\n\r\n"

# Connections accepted in one turn of the event loop.
PER_TURN = 32

# Length of the kernel's accept queue.
BACKLOG = 2048

# Pause in seconds after a failed accept.
PAUSE_S = 0.1

Factory = Callable[[], asyncio.BaseProtocol]


class _Unread:
    """A connection without a complete request. `ready` gets it with the first head still unread."""

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


class ControllerConnections:
    """The open connections of a web application. The thread of its event loop owns this object."""

    def __init__(self, limit: int = 0) -> None:
        """Allow at most `limit` connections; 0 derives the limit from the process's descriptor limit."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit or min(MAX_CONNECTIONS, int(descriptors * MAX_SHARE))
        # By descriptor; the connection that has been idle longest comes first.
        self._waiting: dict[int, asyncio.Transport | _Unread] = {}
        self._in_request: dict[int, asyncio.Transport] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def accept(self, listener: socket.socket, factory: Factory) -> None:
        """Start to accept connections; serve each with a protocol made by `factory`."""
        asyncio.get_running_loop().add_reader(listener, self._accept_some, listener, factory)

    def refuse(self, listener: socket.socket) -> None:
        """Stop accepting connections."""
        asyncio.get_running_loop().remove_reader(listener)

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Middleware that keeps a connection open while its request is handled."""
        transport = request.transport
        if transport is None:
            return web.Response()  # the client has gone
        descriptor = transport.get_extra_info("socket").fileno()
        self._waiting.pop(descriptor, None)
        self._in_request[descriptor] = transport
        try:
            return await handler(request)
        finally:
            # Deferred until the answer is written.
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
        """Close the connection that has been idle longest, if the limit is exceeded."""
        if self._num_open > self._limit:
            self._waiting.pop(next(iter(self._waiting))).abort()

    @property
    def _num_open(self) -> int:
        return len(self._waiting) + len(self._in_request) + len(self._opening)
