"""Connections of our HTTP servers: their number, the choice of the one that is closed, and timeouts for slow clients.

The parser, llhttp, limits neither the size of headers and trailers nor the number of requests that a client sends
before the first response, and requires no Host. It does not read the body of a request that proposes another protocol.
Connection, which is uvicorn's HTTP/1.1 connection, adds this.
"""

import asyncio
import resource
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sie_triton.http.limits import ConnectionLimits

# Descriptors that a door needs besides those of its clients: files, Triton's channel, the event loop.
RESERVED_DESCRIPTORS = 256


def affordable(num_connections: int, num_shares: int = 1) -> int:
    """Return `num_connections`, or fewer if `num_shares` times as many exceed this process's descriptor limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return num_connections
    return max(1, min(num_connections, (most - RESERVED_DESCRIPTORS) // num_shares))


class Phase(IntEnum):
    """Progress of a connection. Connections in earlier phases are closed first."""

    NEW = 0  # headers of the first request are incomplete
    KEPT = 1  # idle between two requests
    READING = 2  # the body of a request is being received
    WORKING = 3  # a request is being processed


class Connections:
    """Limit on open connections, so that the process never runs out of descriptors; used on one event loop.

    `give_way` of a connection closes it at once.

    >>> class Socket:
    ...     def give_way(self): crowd.leave(self)
    >>> crowd, first, second, third = Connections(2), Socket(), Socket(), Socket()
    >>> crowd.enter(first), crowd.enter(second), crowd.move(first, Phase.WORKING), crowd.enter(third)
    (True, True, None, True)
    >>> [crowd.phase(each) for each in (first, second, third)]
    [<Phase.WORKING: 3>, None, <Phase.NEW: 0>]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._phases: dict[Any, Phase] = {}
        self._by_phase: dict[Phase, dict[Any, None]] = {phase: {} for phase in Phase}  # longest in its phase first

    def __len__(self) -> int:
        return len(self._phases)

    def phase(self, client: Any) -> Phase | None:
        return self._phases.get(client)

    def enter(self, client: Any) -> bool:
        """Admit `client` as NEW; at the limit, close another connection. Return False if all others are WORKING."""
        if len(self._phases) >= self._limit:
            waiting = (each for phase in Phase if phase is not Phase.WORKING for each in self._by_phase[phase])
            victim = next(waiting, None)
            if victim is None:
                return False
            self.leave(victim)
            victim.give_way()
        self._phases[client] = Phase.NEW
        self._by_phase[Phase.NEW][client] = None
        return True

    def move(self, client: Any, phase: Phase) -> None:
        """Move `client` to `phase`; do nothing if it has left."""
        before = self._phases.get(client)
        if before is not None and before is not phase:
            del self._by_phase[before][client]
            self._phases[client] = phase
            self._by_phase[phase][client] = None

    def leave(self, client: Any) -> None:
        """Remove `client`; do nothing if it has left already."""
        phase = self._phases.pop(client, None)
        if phase is not None:
            del self._by_phase[phase][client]


# Response to a connection beyond the limit.
FULL_BODY = b'{"detail": {"code": "QUEUE_FULL", "message": "all connections are busy; retry later"}}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(FULL_BODY), FULL_BODY)
)

INVALID = "Invalid HTTP request received."

# Key of `scope` with the Connection of the request.
CONNECTION = "sie_triton.connection"


class Part(Enum):
    """Part of a request that is expected next."""

    HEAD = 0
    BODY = 1
    NONE = 2  # the request is complete, and its response is not


class Connection(HttpToolsProtocol):
    """Connection of a door. `read_body` limits the size and duration of a body.

    `has_gone` is True once the client has disconnected.
    """

    has_gone = False

    _when_gone: Callable[[], object] | None = None
    _part = Part.HEAD
    _num_idle_bytes = 0  # since the last progress: the end of headers, or a part of a body
    _answered: RequestResponseCycle | None = None  # the request being answered; `cycle` is the latest one
    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def watch(self, when_gone: Callable[[], object] | None) -> None:
        """Call `when_gone` if the client disconnects before it has the response to its request, which has been read.

        uvicorn reads no further after a large body, and without reading it does not notice a disconnect.
        """
        self._when_gone = when_gone
        if when_gone is not None:
            self.flow.resume_reading()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._crowd: Connections | None = self.app_state.get("connections")
        self._limits: ConnectionLimits = self.app_state.get("limits", ConnectionLimits())
        if self._crowd is not None and not self._crowd.enter(self):
            transport.write(FULL)
            transport.close()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._num_idle_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._num_idle_bytes > self._limits.head_bytes:
            self.send_400_response(INVALID)
        is_working = self._answered is not None and not self._answered.response_complete
        if self._part is not Part.HEAD or is_working:
            self._expect_no_head()
        elif self._head is None:  # part of the headers, or the end of a body whose request was answered earlier
            self._expect_head()
        self._tell_phase()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as exc:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._feed_without_upgrade(data[exc.args[0] :])
        except HttpParserError:
            self.send_400_response(INVALID)

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Read a request again without its header Upgrade, such as of Java's client: llhttp does not read its body."""
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        self.parser = HttpRequestParser(self)
        self._feed(b"".join(head) + b"\r\n" + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part, self._num_idle_bytes = Part.HEAD, 0
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is Part.HEAD:  # not a trailer of a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._part, self._num_idle_bytes = Part.BODY, 0
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("the door is no proxy")
        if self.parser.get_http_version() == "1.1" and [name for name, _ in self.headers].count(b"host") != 1:
            raise ValueError("HTTP/1.1 requires one Host")
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # is read again without its Upgrade
        super().on_headers_complete()
        if len(self.pipeline) > self._limits.num_pipelined:
            raise ValueError("too many requests before the first response")

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._num_idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        is_over = self.cycle is not None and self.cycle.response_complete
        self._part, self._num_idle_bytes = Part.HEAD if is_over else Part.NONE, 0

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are not HTTP, and end the requests in progress."""
        self._end_requests()
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        if self._part is Part.BODY and self._answered is self.cycle:
            self.loop.call_later(self._limits.rest_timeout_s, self._check_rest, self.cycle)
        elif self._answered is self.cycle:
            self._part = Part.HEAD
        super().on_response_complete()
        self._tell_phase()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket; from now on it counts towards the limit of watchers."""
        self._part = Part.NONE
        self._leave()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        self._expect_no_progress()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._expect_no_progress()
        self._end_requests()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Abort the connection to make room for another one."""
        self.transport.abort()

    def _end_requests(self) -> None:
        self.has_gone = True
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()
        if self._when_gone is not None:
            self._when_gone()

    def _leave(self) -> None:
        self._expect_no_head()
        if self._crowd is not None:
            self._crowd.leave(self)

    def _tell_phase(self) -> None:
        if self._crowd is None:
            return
        if self._answered is None:
            phase = Phase.NEW
        elif self._answered is self.cycle and self._part is Part.BODY:
            phase = Phase.READING
        else:
            phase = Phase.KEPT if self._answered.response_complete else Phase.WORKING
        self._crowd.move(self, phase)

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _expect_no_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _check_rest(self, answered: RequestResponseCycle) -> None:
        if self.cycle is answered and self._part is Part.BODY:
            self.transport.abort()

    def _expect_progress(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._answer = self.loop.call_later(self._limits.read_s, self._check_progress, waiting)

    def _expect_no_progress(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None

    def _check_progress(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() > waited - self._limits.read_bytes:
            self.transport.abort()
        else:
            self._expect_progress()
