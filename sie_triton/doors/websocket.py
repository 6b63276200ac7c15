"""WebSocket (RFC 6455) on which only the server sends texts. Messages of clients are ignored, except close and ping.

uvicorn hands over the connection with its upgrade request; an ASGI application accepts it and sends texts.
"""

import asyncio
import struct
from base64 import b64encode
from hashlib import sha1
from typing import Any
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
FINAL, MASKED = 0x80, 0x80
MAX_FRAME_BYTES = 64 * 1024

# Timeout of a write in seconds; beyond it a client that does not read is disconnected.
WRITE_S = 10.0

NORMAL, GOING_AWAY, WRONG, TOO_BIG = 1000, 1001, 1002, 1009


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """Return an unmasked final frame.

    >>> frame(TEXT, b"hi").hex(), len(frame(TEXT, bytes(200))), len(frame(TEXT, bytes(70000)))
    ('81026869', 204, 70010)
    """
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", FINAL | opcode, size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", FINAL | opcode, 126, size)
    else:
        head = struct.pack("!BBQ", FINAL | opcode, 127, size)
    return head + payload


def accept_key(key: bytes) -> bytes:
    """Return the value of Sec-WebSocket-Accept for a Sec-WebSocket-Key.

    >>> accept_key(b"dGhlIHNhbXBsZSBub25jZQ==")
    b's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    """
    return b64encode(sha1(key + GUID, usedforsecurity=False).digest())


class WebSocket(asyncio.Protocol):
    """Protocol of one connection, with the interface of uvicorn's own WebSocket protocols."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._app = config.loaded_app
        self._state = server_state
        self._app_state = app_state
        self._transport: Any = None
        self._flow: Any = None
        self._key = b""
        self._buffer = bytearray()
        self._is_gone = asyncio.Event()
        self._is_announced = self._is_open = False

    def connection_made(self, transport: Any) -> None:
        self._transport, self._flow = transport, FlowControl(transport)
        self._state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._flow.resume_writing()
        self._is_gone.set()

    def pause_writing(self) -> None:
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        self._flow.resume_writing()

    def shutdown(self) -> None:
        """Close the connection, because the server shuts down."""
        self._end(GOING_AWAY)

    def data_received(self, data: bytes) -> None:
        if not self._key:
            self._begin(data)
            return
        self._buffer += data
        while not self._is_gone.is_set() and self._read_frame():
            pass

    def _begin(self, data: bytes) -> None:
        head, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        found, target = dict(headers), head.split(b" ")[1]
        self._key = found.get(b"sec-websocket-key", b"")
        if not self._key or found.get(b"sec-websocket-version") != b"13":
            self._refuse(b"400 Bad Request")
            return
        raw_path, _, query = target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "subprotocols": [],
            "state": self._app_state.copy(),
        }
        task = asyncio.get_running_loop().create_task(self._run(scope))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        finally:
            self._end(NORMAL)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_announced:
            self._is_announced = True
            return {"type": "websocket.connect"}
        await self._is_gone.wait()
        return {"type": "websocket.disconnect", "code": NORMAL}

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.accept":
            self._is_open = True
            answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            self._transport.write(answer + b"Sec-WebSocket-Accept: " + accept_key(self._key) + b"\r\n\r\n")
        elif message["type"] == "websocket.close":
            self._end(message.get("code", NORMAL))
        elif not self._is_gone.is_set():
            self._transport.write(frame(TEXT, message["text"].encode()))
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._flow.drain()
            except TimeoutError:
                self._transport.abort()

    def _read_frame(self) -> bool:
        """Process one frame of the buffer; return False if it is incomplete or closes the connection with an error."""
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        opcode, size, start = buffer[0] & 0xF, buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return False
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if not buffer[1] & MASKED or size > MAX_FRAME_BYTES:
            self._end(TOO_BIG if buffer[1] & MASKED else WRONG)
            return False
        if len(buffer) < start + 4 + size:
            return False
        mask, payload = buffer[start : start + 4], buffer[start + 4 : start + 4 + size]
        del buffer[: start + 4 + size]
        if opcode == CLOSE:
            self._end(NORMAL)
        elif opcode == PING and size < 126:
            self._transport.write(frame(PONG, bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))))
        return True

    def _end(self, code: int) -> None:
        if self._transport.is_closing():
            return
        if self._is_open:
            self._transport.write(frame(CLOSE, struct.pack("!H", code)))
            self._transport.close()
        else:
            self._refuse(b"403 Forbidden")
        self._is_gone.set()

    def _refuse(self, status: bytes) -> None:
        self._transport.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self._transport.close()
