"""uvicorn's connection, without patience for a client that sends heads of requests or what nobody reads, or reads
answers, too slowly."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

# From the first byte of a request, or of the connection, to the end of its headers.
HEAD_S = 10.0

# What is left of a body that was answered before it was there. The connection goes on after it: a client may have sent
# its next request by the time that it hears of an end.
REST_S = 2.0

# Of an answer that waits to be read, so much must go in so many seconds.
READ_BYTES, READ_S = 256 * 1024, 10.0


class Connection(H11Protocol):
    """The size of a head is limited by h11, the time of a body by whoever reads it."""

    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        if before is h11.IDLE and self._head is None:
            self._expect_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._expect_no_head()
        elif before is h11.SEND_BODY:  # nobody waited for its end, and nobody for another request
            self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(REST_S, self._check_rest, self.cycle)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        self._expect_no_progress()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        self._expect_no_progress()
        super().connection_lost(exc)

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
