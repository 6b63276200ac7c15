"""uvicorn's WebSocket, which disconnects a client that does not read."""

import asyncio

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sie_triton.http.limits import ConnectionLimits


class WebSocket(WebSocketsSansIOProtocol):
    """Connection of a watcher. While texts wait for the client, uvicorn would wait without end."""

    _overdue: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        limits: ConnectionLimits = self.app_state.get("limits", ConnectionLimits())
        self._overdue = self.loop.call_later(limits.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_no_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_no_reading()

    def _expect_no_reading(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
