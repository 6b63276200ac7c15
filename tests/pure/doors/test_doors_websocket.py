"""Frames that clients send on the WebSocket, on a real socket."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sie_triton.doors.websocket import CLOSE, FINAL, MASKED, PING, PONG, TEXT
from tests.support.doors import door_of, listening

UPGRADE = (
    b"GET /ws/status HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@contextmanager
def watching() -> Iterator[socket.socket]:
    """Yield a connection to a door, upgraded to a WebSocket."""
    with listening(door_of()[0]) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        assert head.startswith(b"HTTP/1.1 101")
        yield client


def head_of(opcode: int, size: int, masked: int = MASKED) -> bytes:
    return struct.pack("!BBQ", FINAL | opcode, masked | 127, size) + b"mask" * bool(masked)


def answer(client: socket.socket) -> tuple[int, bytes]:
    """Return the opcode and the payload of the server's next frame that is not a text."""
    while True:
        opcode, size = client.recv(2, socket.MSG_WAITALL)
        if size >= 126:
            width = 2 if size == 126 else 8
            size = int.from_bytes(client.recv(width, socket.MSG_WAITALL))
        payload = client.recv(size, socket.MSG_WAITALL) if size else b""
        if opcode & 0xF != TEXT:
            return opcode & 0xF, payload


def test_a_frame_of_64_kib_is_read_and_ignored():
    with watching() as client:
        client.sendall(head_of(TEXT, 64 * 1024) + bytes(64 * 1024))
        client.sendall(
            struct.pack("!BB", FINAL | PING, MASKED | 2) + b"mask" + bytes([ord("h") ^ ord("m"), 0x61 ^ 0x69])
        )
        assert answer(client) == (PONG, b"hi")


@pytest.mark.timeout(60)  # an open connection gets texts without end
@pytest.mark.parametrize(
    ("head", "code"),
    [(head_of(TEXT, 64 * 1024 + 1), 1009), (head_of(TEXT, 5, masked=0), 1002)],
    ids=["too large", "not masked"],
)
def test_a_frame_that_is_not_allowed_closes_the_connection(head, code):
    """The head is enough: the payload of a large frame is not waited for."""
    with watching() as client:
        client.sendall(head)
        assert answer(client) == (CLOSE, struct.pack("!H", code))
        assert client.recv(1) == b""
