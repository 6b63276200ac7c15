"""uvicorn's HTTP/1.1 connection, with timeouts for slow clients and a limit on the number of connections."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sie_triton.doors.connections import Connections, Phase

# Timeout of a request's headers, in seconds, from the first byte of the request or the start of the connection.
HEAD_S = 10.0

# Timeout for the rest of a body whose request has already been answered, in seconds. If the rest arrives in time, the
# connection stays open for the client's next request.
REST_S = 2.0

# Minimum speed at which a client must read a response: READ_BYTES every READ_S seconds.
READ_BYTES, READ_S = 256 * 1024, 10.0

# Response to a connection beyond the limit.
FULL_BODY = b'{"detail": {"code": "RESOURCE_EXHAUSTED", "message": "all connections are busy; retry later"}}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(FULL_BODY), FULL_BODY)
)


class Connection(H11Protocol):
    """Connection of a door. h11 limits the size of headers; `read_body` limits the size and duration of a body."""

    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._crowd: Connections | None = self.app_state.get("connections")
        if self._crowd is not None and not self._crowd.enter(self):
            transport.write(FULL)
            transport.close()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._expect_no_head()
        elif self._head is None:  # part of the headers, or the end of a body whose request was answered earlier
            self._expect_head()
        self._tell_phase()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are not HTTP; if a response has begun already, abort the connection instead."""
        if self.cycle is not None:  # the request ends here; a later response to it is dropped
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(REST_S, self._check_rest, self.cycle)
        self._tell_phase()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to the WebSocket; from now on it counts towards the limit of watchers."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        self._expect_no_progress()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._expect_no_progress()
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Abort the connection to make room for another one."""
        self.transport.abort()

    def _leave(self) -> None:
        self._expect_no_head()
        if self._crowd is not None:
            self._crowd.leave(self)

    def _tell_phase(self) -> None:
        if self._crowd is None:
            return
        if self.cycle is None:
            phase = Phase.NEW
        elif self.conn.their_state is h11.SEND_BODY:
            phase = Phase.READING
        else:
            phase = Phase.KEPT if self.cycle.response_complete else Phase.WORKING
        self._crowd.move(self, phase)

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.abort)

    def _expect_no_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _check_rest(self, answered: RequestResponseCycle) -> None:
        if self.cycle is answered and self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def _expect_progress(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._answer = self.loop.call_later(READ_S, self._check_progress, waiting)

    def _expect_no_progress(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None

    def _check_progress(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() > waited - READ_BYTES:
            self.transport.abort()
        else:
            self._expect_progress()
