"""What a client may do on the WebSocket, on a real socket."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from websockets.sync.client import ClientConnection, connect

from sie_triton.doors.health import LatestStatus
from sie_triton.doors.limits import DoorLimits
from sie_triton.http.limits import ConnectionLimits
from tests.support.controller import wait_for
from tests.support.doors import door_of, listening

UPGRADE = (
    b"GET /ws/status HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@contextmanager
def watching() -> Iterator[ClientConnection]:
    with listening(door_of()[0]) as port, connect(f"ws://127.0.0.1:{port}/ws/status") as client:
        yield client


def test_a_message_of_64_kib_is_ignored():
    with watching() as client:
        for _ in range(3):
            client.send("a" * 64 * 1024)
        assert client.ping().wait(30)
        assert '"ready"' in client.recv(30)


def test_a_larger_message_ends_the_connection():
    with watching() as client:
        client.send("a" * (64 * 1024 + 1))
        wait_for(lambda: client.close_code == 1009)


def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    async def large(self) -> bytes:
        return b"a" * 2**24

    monkeypatch.setattr(LatestStatus, "text", large)
    with (
        listening(door_of(DoorLimits(ConnectionLimits(read_s=0.05)))[0]) as port,
        socket.create_connection(("127.0.0.1", port), 30) as client,
    ):
        client.sendall(UPGRADE)
        assert client.recv(12) == b"HTTP/1.1 101"
        own = client.getsockname()
        wait_for(lambda: not any(each.raddr == own for each in psutil.Process().net_connections("tcp")))
