"""Access to the door, and limits of a single client."""

import asyncio
import hmac
import socket
import threading
import time

import aiohttp
import orjson
import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.doors.access import Access
from sie_triton.doors.failures import Failure
from sie_triton.doors.limits import DoorLimits
from sie_triton.errors import SettingsError
from sie_triton.http.limits import ConnectionLimits
from sie_triton.settings import read_settings
from tests.support.controller import wait_for
from tests.support.doors import door_of, knock, listening, post

TOKENS = {"auth_mode": "token", "auth_tokens": "first-token, second-token", "admin_token": "admins"}


@pytest.mark.parametrize("header", ["Bearer first-token", "bearer second-token", "second-token"])
def test_any_of_the_tokens_opens_the_door(header):
    assert post(door_of(**TOKENS)[0], headers={"Authorization": header}).status_code == 200


def test_tokens_of_a_file_change_while_the_door_runs(tmp_path):
    clients, admin = tmp_path / "clients", tmp_path / "admin"
    clients.write_text("old")
    admin.write_text("admin-old")
    access = Access(read_settings(auth_mode="token", auth_tokens=f"@{clients}", admin_token=f"@{admin}"))
    assert allowed(access) == (True, False, True, False)
    clients.write_text("new")
    admin.write_text("admin-new")
    assert allowed(access) == (False, True, False, True)


def allowed(access):
    """Return whether the old and the new token of clients, and those of administrators, are accepted."""

    def accepts(check, given):
        try:
            check(given)
        except Failure:
            return False
        return True

    of_clients = [accepts(access.check_token, f"Bearer {each}".encode()) for each in ("old", "new")]
    headers = [{b"authorization": f"Bearer admin-{each}".encode()} for each in ("old", "new")]
    return (*of_clients, *(accepts(access.check_admin, each) for each in headers))


@pytest.mark.parametrize("mode", ["static", "token"])
@pytest.mark.parametrize("header", [None, "Bearer", "Bearer x", "Bearer first", "Basic first-token", "Bearer admins"])
def test_requests_without_a_valid_token_are_refused(mode, header):
    door, backend = door_of(**{**TOKENS, "auth_mode": mode})
    answer = post(door, headers={"Authorization": header} if header else {})
    assert (answer.status_code, answer.json()["detail"]["code"]) == (401, "UNAUTHORIZED")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert backend.asked == []


def test_every_token_is_compared_whichever_is_right(monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or a == b)
    assert post(door_of(**TOKENS)[0], headers={"Authorization": "Bearer first-token"}).status_code == 200
    assert compared == [b"first-token", b"second-token"]


def test_probes_are_open_and_nothing_else_is():
    door, _ = door_of(**TOKENS)
    statuses = {path: knock(door, lambda client: client.get(path)).status_code for path in PATHS}  # noqa: B023
    assert statuses == PATHS


OPEN = dict.fromkeys(("/healthz", "/readyz", "/", "/page/page.js", "/page/page.css"), 200)
PATHS = {**OPEN, **dict.fromkeys(("/health", "/status", "/docs", "/v1/models", "/v1/models/a"), 401)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"auth_mode": "tokens"}, "--auth-mode=tokens: must be 'none', 'static' or 'token'"),
        ({"auth_mode": "static"}, "SIE_AUTH_TOKENS.*needs at least one token|auth_tokens"),
        ({"auth_mode": "token", "auth_tokens": " ,"}, "--auth-tokens: auth_mode token needs at least one token"),
        ({**TOKENS, "admin_token": "first-token"}, "--admin-token: is one of auth_tokens"),
    ],
)
def test_invalid_token_settings_are_refused_at_startup(given, message):
    with pytest.raises(SettingsError, match=message) as failure:
        read_settings(**given)
    assert "first-token" not in str(failure.value)


@pytest.mark.parametrize("command", ["serve", "door", "gateway", "config-service", "cluster up"])
def test_no_server_starts_with_tokens_that_nobody_has_to_send(command, monkeypatch):
    monkeypatch.setenv("SIE_AUTH_TOKENS", "first-token")
    refused = CliRunner().invoke(cli, command.split())
    assert isinstance(refused.exception, SettingsError)
    assert "set SIE_AUTH_MODE=token, or leave out SIE_AUTH_TOKENS" in str(refused.exception)
    assert "first-token" not in str(refused.exception)


def test_a_body_too_large_is_refused_by_its_length_and_while_it_comes():
    door, backend = door_of(door_max_body_bytes=100)
    whole = b'{"items": ["' + b"a" * 85 + b'"]}'
    assert len(whole) == 100
    assert post(door, content=whole, json=None).status_code == 200
    read = 0

    async def endless():
        nonlocal read
        while True:
            read += 10
            yield b"x" * 10

    for content, headers in ((b"x" * 101, {}), (endless(), {})):
        answer = post(door, content=content, headers=headers, json=None)
        assert (answer.status_code, answer.json()["detail"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
        assert answer.headers["Connection"] == "close"
    assert read <= 120
    read = 0
    assert post(door, content=endless(), headers={"Content-Length": "101"}, json=None).status_code == 413
    assert read == 0
    assert len(backend.asked) == 1


def test_more_items_than_allowed_are_refused():
    door, _ = door_of(door_max_items=3)
    assert post(door, {"items": ["a"] * 3}).status_code == 200
    answer = post(door, {"items": ["a"] * 4})
    assert answer.status_code == 400
    assert "SIE_DOOR_MAX_ITEMS allows 3" in answer.json()["detail"]["message"]


def test_a_compressed_body_is_refused():
    assert post(door_of()[0], headers={"Content-Encoding": "gzip"}).status_code == 415


HEAD = b"POST /v1/encode/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"


@pytest.mark.parametrize(
    ("limits", "sent", "answer"),
    [
        (DoorLimits(body_timeout_s=0.3), HEAD + b"\r\n{", b"HTTP/1.1 408"),
        (DoorLimits(ConnectionLimits(head_timeout_s=0.3)), HEAD, b""),
        (DoorLimits(ConnectionLimits(head_timeout_s=0.3)), b"", b""),
        (DoorLimits(body_timeout_s=0.3), b"X-A: " + b"a" * 70_000, b"HTTP/1.1 400"),
    ],
    ids=["body", "head", "nothing", "long head"],
)
def test_a_client_that_trickles_is_cut(limits, sent, answer):
    with listening(door_of(limits)[0]) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        threading.Thread(target=trickle, args=(client, sent)).start()
        got = b""
        while chunk := received(client):
            got += chunk
    assert got.startswith(answer)
    assert bool(got) is bool(answer)


@pytest.mark.parametrize("path", [b"/v1/encode/m", b"/nowhere", b"/v1/models"])
def test_an_unread_body_is_not_waited_for(path):
    limits = DoorLimits(ConnectionLimits(rest_timeout_s=0.3))
    head = HEAD.replace(b"/v1/encode/m", path).replace(b"1000", b"1000000")
    with listening(door_of(limits, **TOKENS)[0]) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        threading.Thread(target=trickle, args=(client, head + b"\r\n{")).start()
        got = b""
        while chunk := received(client):
            got += chunk
    assert got.startswith(b"HTTP/1.1 4")


def test_a_connection_goes_on_after_an_unread_body():
    """The next request may be on its way; if none comes, the connection ends as an idle one."""
    limits = DoorLimits(ConnectionLimits(rest_timeout_s=600.0, head_timeout_s=2.0))
    body = b'{"items": ["a"]}'
    asked = b"Host: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with listening(door_of(limits)[0]) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        for line, status in ((b"POST /nowhere HTTP/1.1\r\n", b"404"), (b"POST /v1/encode/m HTTP/1.1\r\n", b"200")) * 2:
            client.sendall(line + asked)
            for sent in body[:8], body[8:]:
                time.sleep(0.1)  # so that the parts arrive one by one
                client.sendall(sent)
            assert answer_of(client).startswith(b"HTTP/1.1 " + status)
        client.sendall(b"POST /nowhere HTTP/1.1\r\n" + asked)
        assert answer_of(client).startswith(b"HTTP/1.1 404")
        client.sendall(body)
        assert received(client) == b""


def answer_of(client: socket.socket) -> bytes:
    """Read one whole response."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += client.recv(4096)
    length = len(got.partition(b"\r\n\r\n")[0]) + 4 + int(got.partition(b"content-length: ")[2].split()[0])
    while len(got) < length:
        got += client.recv(length - len(got))
    return got


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_its_answer_is_cut(reads):
    """test_doors_connection.py has the speed at which a client must read."""
    limits = DoorLimits(ConnectionLimits(read_s=600.0 if reads else 0.2))
    body = orjson.dumps({"items": ["a" * 50] * 10_000})
    head = b"POST /v1/encode/m HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: %d\r\n\r\n"
    door, backend = door_of(limits, door_max_items=10_000)
    backend.dims = 320  # more than the system keeps on the way
    with listening(door) as port, socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(head % len(body) + body)
        client.recv(1, socket.MSG_PEEK)
        if not reads:
            wait_for(lambda: not len(door.connections))
        got = client.recv(4096)
        whole = len(got.partition(b"\r\n\r\n")[0]) + 4 + int(got.partition(b"content-length: ")[2].split()[0])
        while len(got) < whole and (chunk := received(client, 2**16)):
            got += chunk
    assert (len(got) == whole) is reads


def trickle(client: socket.socket, sent: bytes) -> None:
    try:
        client.sendall(sent)
        while sent:  # until the door, or the test, has closed the connection
            time.sleep(0.05)
            client.sendall(b"x")
    except OSError:
        pass


def received(client: socket.socket, num_bytes: int = 4096) -> bytes:
    try:
        return client.recv(num_bytes)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(("token", "status"), [("first-token", 101), ("wrong", 403)])
def test_watchers_need_a_token_too(token, status):
    async def watch(port: int) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session:
            try:
                async with session.ws_connect(f"http://127.0.0.1:{port}/ws/status", headers=headers) as watched:
                    assert (await watched.receive_json(timeout=60))["ready"]
                    return 101
            except aiohttp.WSServerHandshakeError as exc:
                return exc.status

    with listening(door_of(**TOKENS)[0]) as port:
        assert asyncio.run(watch(port)) == status


@pytest.mark.parametrize(("given", "seconds"), [({}, 25.0), ({"X-Request-Timeout": "0.5"}, 0.5)])
def test_the_client_may_set_the_timeout(given, seconds):
    door, backend = door_of(door_timeout_s=25)
    assert post(door, headers=given).status_code == 200
    assert backend.asked[0][2] == seconds


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "soon", "1e9"])
def test_an_invalid_request_timeout_header_is_refused(given):
    answer = post(door_of()[0], headers={"X-Request-Timeout": given})
    assert answer.status_code == 400
    assert answer.json()["detail"]["message"].startswith("X-Request-Timeout: must be above 0")


def test_web_pages_may_call_where_their_origin_is_named():
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    for origins, allowed in (("", None), ("https://a.example", "https://a.example"), ("https://b.example", None)):
        door, _ = door_of(door_cors_origins=origins)
        answer = knock(door, lambda client: client.options("/v1/encode/m", headers=asks))
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed
