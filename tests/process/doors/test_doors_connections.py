"""HTTP/1.1 on a connection of the door: what its parser leaves to it."""

import socket
import threading
import time
from http.client import HTTPResponse

import pytest
from uvicorn.protocols.http import httptools_impl

from sie_triton.doors import body_codec, endpoint
from sie_triton.doors.limits import DoorLimits
from sie_triton.http.limits import ConnectionLimits
from tests.support.controller import wait_for
from tests.support.doors import door_of, listening

BODY = b'{"items": ["a"]}'
HEAD = b"POST /v1/encode/m HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = HEAD + b"Content-Length: 16\r\n\r\n" + BODY
LIVE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def client():
    with listening(door_of()[0]) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        yield client


def all_of(client: socket.socket) -> bytes:
    """Return what the client receives until the door closes the connection."""
    got = b""
    while chunk := client.recv(2**16):
        got += chunk
    return got


def answer_to(client: socket.socket, request: bytes) -> HTTPResponse:
    client.sendall(request)
    answer = HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer


def test_requests_sent_together_are_answered_in_order(client):
    client.sendall(LIVE + REQUEST + LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    got = all_of(client)
    assert got.count(b"HTTP/1.1 200 OK") == 3
    assert got.index(b"text/plain") < got.index(b"application/json") < got.rindex(b"text/plain")


def test_requests_without_end_before_the_first_response_are_refused():
    door, backend = door_of()
    backend.seconds = 600
    with listening(door) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(REQUEST * (ConnectionLimits.num_pipelined + 2))
        assert all_of(client).startswith(b"HTTP/1.1 400")
    assert backend.asked == []


def test_the_call_of_a_client_that_disconnects_is_cancelled_whatever_else_it_has_sent():
    door, backend = door_of()
    backend.seconds = 600
    with listening(door) as port:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(REQUEST * 2)
            wait_for(lambda: backend.asked)
        wait_for(lambda: backend.was_cancelled)
        assert len(backend.asked) == 1


def test_a_client_that_disconnects_after_a_large_body_is_noticed(monkeypatch):
    monkeypatch.setattr(httptools_impl, "HIGH_WATER_LIMIT", 1000)
    door, backend = door_of()
    backend.seconds = 600
    body = b'{"items": ["%b"]}' % (b"a" * 50_000)
    with listening(door) as port:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body))
            assert client.recv(4096).startswith(b"HTTP/1.1 100")
            client.sendall(body)
            wait_for(lambda: backend.asked)
        wait_for(lambda: backend.was_cancelled)


def test_a_request_whose_client_disconnects_before_it_is_decoded_is_dropped(monkeypatch):
    door, backend = door_of()
    is_read = threading.Event()

    def read_late(body, kind):
        is_read.set()
        wait_for(lambda: not len(door.connections))
        return body_codec.read(body, kind)

    monkeypatch.setattr(endpoint, "read", read_late)
    body = b'{"items": ["%b"]}' % (b"a" * DoorLimits.small_body_bytes)
    with listening(door) as port:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert is_read.wait(30)
        wait_for(lambda: not door.memory.used)
    assert backend.asked == []


def test_trailers_are_not_headers(client):
    body = b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\nX-Request-ID: trailer\r\n\r\n"
    assert answer_to(client, HEAD + b"X-Request-ID: header\r\n" + body).headers["X-Trace-ID"] == "header"


def test_the_start_of_a_next_request_has_time_while_the_first_is_answered():
    door, backend = door_of(DoorLimits(ConnectionLimits(head_timeout_s=0.1)))
    backend.seconds = 0.5
    with listening(door) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(REQUEST + REQUEST[:20])
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("hosts", [0, 2])
def test_a_request_has_one_host(client, hosts):
    client.sendall(b"GET /healthz HTTP/1.1\r\n" + b"Host: localhost\r\n" * hosts + b"\r\n")
    assert all_of(client).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "start",
    [HEAD, HEAD + b"X-A: ", HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n"],
    ids=["headers", "one header", "trailers"],
)
def test_headers_and_trailers_are_bounded(client, start):
    line = b"a" * 1000 if start.endswith(b": ") else b"X-A: " + b"a" * 100 + b"\r\n"
    client.sendall(start)
    got, sent = b"", 0
    try:
        while not got and sent < 2**20:
            sent += len(line)
            client.sendall(line)
            time.sleep(0.0005)
        got = client.recv(100)
    except OSError:
        pass
    assert sent < 4 * ConnectionLimits.head_bytes


def test_a_proposal_of_http_2_is_ignored(client):
    more = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length"
    for _ in range(2):
        assert answer_to(client, REQUEST.replace(b"Content-Length", more)).status == 200


def test_a_proxy_s_request_is_refused(client):
    client.sendall(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n")
    assert all_of(client).startswith(b"HTTP/1.1 400")


def test_a_kept_connection_may_become_a_websocket():
    door, _ = door_of(DoorLimits(ConnectionLimits(head_timeout_s=0.2)))
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    with listening(door) as port, socket.create_connection(("127.0.0.1", port), 30) as client:
        assert answer_to(client, LIVE).status == 200
        client.sendall(b"GET /ws/status HTTP/1.1\r\nHost: localhost\r\n" + upgrade + key)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert client.recv(2**16)
