"""Bytes on a connection to the door: HTTP/1.1, and WebSocket frames after an upgrade."""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvicorn
from hypothesis import strategies as st
from uvicorn.server import ServerState

from sie_triton.doors.app import application
from sie_triton.doors.websocket import WebSocket
from sie_triton.http.connection import Connection
from sie_triton.http.limits import ConnectionLimits
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.support.doors import door_of

HOST = b"Host: localhost\r\n"
POST = b"POST /v1/encode/org/m HTTP/1.1\r\n" + HOST
JSON = b"Content-Type: application/json\r\nAccept: application/json\r\n"
BODY = b'{"items": ["a"]}'
UPGRADE = (
    b"GET /ws/status HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FINAL = MASKED = 0x80
TEXT, CLOSE, PING = 0x1, 0x8, 0x9
FRAMES = (
    struct.pack("!BB", FINAL | PING, MASKED | 2) + b"maskhi",
    struct.pack("!BBH", FINAL | TEXT, MASKED | 126, 300) + b"mask" + bytes(300),
    struct.pack("!BBQ", FINAL | TEXT, MASKED | 127, 1 << 62) + b"mask",
    struct.pack("!BB", FINAL | CLOSE, MASKED | 2) + b"mask\x03\xe8",
)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n"
SENT = (
    POST + JSON + b"Content-Length: 16\r\n\r\n" + BODY,
    POST + JSON + CHUNKED,
    b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + b"GET /v1/models?a=%ff HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nConnection: close\r\n\r\n",
    POST + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + JSON + b"Content-Length: 16\r\n\r\n" + BODY,
    b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://localhost/healthz#x HTTP/1.1\r\n" + HOST + b"\r\n",
    UPGRADE,
    *(UPGRADE + frame for frame in FRAMES),
    UPGRADE + b"".join(FRAMES[:2]) * 2,
)

# Turns of the event loop after each part: enough for what a request needs.
NUM_TURNS = 12


class Wire(asyncio.Transport):
    """Stands for a connection's transport. `sent` is what the door has written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.protocol: Any = None
        self._is_closing = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@contextmanager
def http(directory: Path) -> Iterator[Target]:
    cases = st.tuples(damaged(SENT), st.lists(st.integers(1, 400), max_size=2))
    with asyncio.Runner() as runner:
        door, _ = door_of(data_dir=directory)
        config = uvicorn.Config(
            application(door),
            http=Connection,
            ws=WebSocket,
            ws_max_size=ConnectionLimits.message_bytes,
            log_config=None,
        )
        config.load()
        yield Target(cases, lambda case: runner.run(_spoken(config, door, *case)))


async def _spoken(config: uvicorn.Config, door: Any, data: bytes, cuts: list[int]) -> None:
    """Send bytes in parts, and disconnect."""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    state, wire = ServerState(), Wire()
    wire.protocol = Connection(config, state, {"connections": door.connections})
    wire.protocol.connection_made(wire)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in pairwise(places):
        if not wire.is_closing():
            wire.protocol.data_received(data[start:end])
        for _ in range(NUM_TURNS):
            await asyncio.sleep(0)
    wire.protocol.connection_lost(None)
    if state.tasks:
        await asyncio.wait([*state.tasks], timeout=5)
    assert not state.tasks
    assert not faults, faults
    assert not len(door.connections)
    assert b"HTTP/1.1 500" not in wire.sent, bytes(wire.sent[:500])
