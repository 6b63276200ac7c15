"""Limits of a door for all its clients together: connections, memory, values in a body, watchers."""

import asyncio
import http.client
import json
import logging
import socket
import threading
from contextlib import ExitStack

import aiohttp
import msgpack
import pytest

from sie_triton.doors import body, body_values
from sie_triton.doors.body_codec import read_json, read_msgpack
from sie_triton.doors.failures import Failure
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import MemoryBudget
from sie_triton.http.connection import RESERVED_DESCRIPTORS, affordable
from tests.support.doors import door_of, knock, listening, post
from tests.support.joiners import in_loop

HEAD = b"POST /v1/encode/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
MSGPACK = {"Content-Type": "application/msgpack"}
ALL_ARE_SLOW = DoorLimits(slow_upload_s=-1.0)


def answers(port: int) -> int:
    """Return the status of a small request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/encode/m", b'{"items": ["a"]}', {"Accept": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


@in_loop
async def test_a_task_that_outlives_its_request_holds_no_memory():
    memory = MemoryBudget(100)
    with memory.held() as held:
        held.take(40)
    with pytest.raises(Failure):
        held.take(50)
    assert memory.used == 0


@pytest.mark.parametrize("sent", [b"", b"POST /v1", HEAD, HEAD + b"{"], ids=["nothing", "half a head", "head", "body"])
def test_waiting_connections_do_not_shut_out_a_client(sent):
    with listening(door_of(door_max_connections=8)[0]) as port, ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            client.sendall(sent)
        assert [answers(port) for _ in range(3)] == [200] * 3


def test_idle_connections_give_way_after_those_without_any_request():
    kept = http.client.HTTPConnection("127.0.0.1", timeout=30)
    door, _ = door_of(door_max_connections=4)
    with listening(door) as port, ExitStack() as stack:
        kept.port = port
        kept.request("POST", "/v1/encode/m", b'{"items": ["a"]}')
        kept.getresponse().read()
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert answers(port) == 200
        kept.request("POST", "/v1/encode/m", b'{"items": ["a"]}')
        assert kept.getresponse().status == 200
        kept.close()


def test_a_connection_too_many_is_refused_while_all_others_are_answered():
    door, backend = door_of(door_max_connections=2)
    backend.seconds = 600
    with listening(door) as port, ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            client.sendall(HEAD.replace(b"1000", b"16") + b'{"items": ["a"]}')
        while len(backend.asked) < 2:
            pass
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert client.recv(1000).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n")


def test_a_door_has_no_more_connections_than_descriptors(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 2048))
    assert affordable(100) == 100
    assert affordable(5000) == 1024 - RESERVED_DESCRIPTORS


def test_a_bad_chunk_writes_nothing_to_the_log(caplog):
    caplog.set_level(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with listening(door_of()[0]) as port:
        for head in (b"POST /v1/encode/m", b"POST /nowhere"):
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(head + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
                while client.recv(4096):
                    pass
        assert answers(port) == 200
    assert caplog.messages == []


BOMBS = {
    "list of empty maps": b"\xdc\x00\x50" + b"\x80" * 0x50,
    "a list that claims to be long": b"\xdd\xff\xff\xff\xff",
    "a map that claims to be long": b"\xdf\x7f\xff\xff\xff",
    "lists in lists": (b"\x9f" + b"\xc0" * 14) * 10 + b"\xc0",
    "short strings": b"\xdc\x00\x50" + b"\xa2ab" * 0x50,
}


@pytest.mark.parametrize("name", BOMBS)
def test_msgpack_is_measured_before_it_is_decoded(name, monkeypatch):
    monkeypatch.setattr(msgpack, "unpackb", lambda *_, **__: pytest.fail("it was decoded"))
    door, backend = door_of(DoorLimits(num_values=40))
    assert post(door, json=None, content=BOMBS[name], headers=MSGPACK).status_code == 413
    assert backend.asked == []


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[1,[{"b":', b"[[],"])
def test_json_is_measured_before_it_is_decoded(opening, monkeypatch):
    monkeypatch.setattr("orjson.loads", lambda _: pytest.fail("it was decoded"))
    assert post(door_of(DoorLimits(num_values=40))[0], json=None, content=opening * 41).status_code == 413


def test_a_body_is_nested_as_deep_as_allowed_and_no_deeper():
    for deep, is_allowed in ((body_values.MAX_DEPTH, True), (body_values.MAX_DEPTH + 1, False)):
        for content in (b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep):
            if is_allowed:
                read_json(content)
            else:
                with pytest.raises(Failure, match="more than 64 levels deep"):
                    read_json(content)
        packed = b"\x91" * deep + b"\xc0"
        if is_allowed:
            assert body_values.msgpack_values(packed) == deep + 1
        else:
            with pytest.raises(Failure, match="more than 64 levels deep"):
                body_values.msgpack_values(packed)


def test_every_kind_of_msgpack_is_measured():
    values = [None, True, 5, -5, 200, -200, 70_000, 2**40, -(2**40), 1.5, "a" * 40, "a" * 300, "a" * 70_000]
    values += [b"a" * 40, b"a" * 300, b"a" * 70_000, [1] * 20, [1] * 70_000, {str(i): i for i in range(20)}]
    values += [msgpack.ExtType(5, b"a" * n) for n in (1, 2, 4, 8, 16, 17, 300, 70_000)]
    values.append({str(i): i for i in range(70_000)})
    for value in values:
        members = len(value) * (2 if isinstance(value, dict) else 1) if isinstance(value, (list, dict)) else 0
        packed = msgpack.packb([value, "end"])
        assert body_values.msgpack_values(packed) == 3 + members
        with pytest.raises(Failure, match="in the middle"):
            body_values.msgpack_values(packed[:-4])


@pytest.mark.parametrize(
    "array",
    [
        {b"type": "f4," * 5_000_000, b"shape": [1]},
        {b"type": "V9223372036854775808", b"shape": [1]},
        {b"type": ["<f4"], b"shape": [1]},
        {b"type": "<f4", b"shape": [-1]},
        {b"type": "<f4", b"shape": [2**62, 2**62]},
        {b"type": "<f4", b"shape": [1] * 100},
        {b"type": "<f4", b"shape": {}},
    ],
    ids=["many fields", "large", "list", "minus one", "overflow", "dimensions", "map"],
)
def test_an_array_of_a_hostile_type_or_shape_is_refused(array):
    packed = msgpack.packb({b"nd": True, b"kind": b"", b"data": b"1234", **array})
    with pytest.raises(Failure, match="contains an array that cannot be read") as failure:
        read_msgpack(packed)
    assert failure.value.status == 400


def test_bodies_together_are_bounded_and_slow_ones_give_way():
    with listening(door_of(ALL_ARE_SLOW, door_max_memory_bytes=5000)[0]) as port, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(4)]
        for client in slow:
            client.sendall(HEAD.replace(b"1000", b"9999") + b"x" * 4000)
        told = [client.recv(1000) for client in slow[:3]]
        assert answers(port) == 200
    assert all(answer.startswith(b"HTTP/1.1 503") and b"retry-after" in answer.lower() for answer in told)


@in_loop
async def test_fast_uploads_are_not_ended_for_others():
    held_by_all = MemoryBudget(100)
    with held_by_all.held() as first, held_by_all.held() as second:
        first.end_upload = lambda: pytest.fail("it was ended")
        first.take(80)
        with pytest.raises(Failure) as failure:
            second.take(30)
        second.take(20)
        assert failure.value.retry_after_s
    assert held_by_all.used == 0
    with held_by_all.held() as third:
        third.take(100)


def test_a_decoded_body_counts_towards_the_memory_limit():
    content = b'{"items": [' + b'"a",' * 20_000 + b'"a"]}'
    for max_bytes, status in ((4 * len(content) + 10_000, 503), (2**24, 400)):
        assert post(door_of(door_max_memory_bytes=max_bytes)[0], json=None, content=content).status_code == status


@in_loop
async def test_an_upload_that_was_ended_takes_no_more():
    all_memory = MemoryBudget(100)
    with all_memory.held() as slow:
        slow.end_upload = lambda: None  # its task is about to run with another chunk
        slow.take(50)
        slow.cut()
        with pytest.raises(Failure):
            slow.take(1)
        assert all_memory.used == 0


@in_loop
async def test_no_upload_is_ended_where_that_is_not_enough():
    all_memory = MemoryBudget(100, slow_s=-1.0)
    with all_memory.held() as done, all_memory.held() as slow, all_memory.held() as other:
        slow.end_upload = lambda: pytest.fail("it was ended")
        done.take(80)
        slow.take(10)
        with pytest.raises(Failure):
            other.take(30)


@in_loop
async def test_no_more_uploads_are_ended_than_needed():
    all_memory, ended = MemoryBudget(100, slow_s=-1.0), []
    with all_memory.held() as oldest, all_memory.held() as later, all_memory.held() as other:
        for name, each in (("oldest", oldest), ("later", later)):
            each.end_upload = lambda name=name: ended.append(name)
            each.take(40)
        other.take(60)
        assert (ended, all_memory.used) == (["oldest"], 100)


def test_commas_in_strings_are_no_values():
    strings = [r"a, b, [c], {d}, \"e\", \\\\" * 20, "", ",", "\\\\", "[{"]
    assert read_json(json.dumps({"items": strings}).encode())
    assert body_values.json_values(json.dumps({"items": strings}).encode(), 40) == 7
    for text in ('{"items": ["' + "," * 100 + '"]}', '["' + r"\"," * 100 + '"]'):
        assert body_values.json_values(text.encode(), 40) <= 4
    with pytest.raises(Failure):
        body_values.json_values(b'["' + b"," * 100 + b'"' + b',"a"' * 50, 40)


def test_responses_count_towards_the_memory_limit():
    door, backend = door_of(door_max_memory_bytes=20_000)
    for dims, status in ((10, 200), (10_000, 503)):
        backend.dims = dims
        assert post(door, headers={"Accept": "application/json"}).status_code == status
    assert door.memory.used == 0


@pytest.mark.parametrize(
    "given", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_other_media_types_are_refused(given):
    answer = post(door_of()[0], json=None, content=b'{"items": ["a"]}', headers={"Content-Type": given})
    assert answer.status_code == 415
    assert "application/json or application/msgpack" in answer.json()["detail"]["message"]


TOKENS = {"auth_mode": "token", "auth_tokens": "a-token"}


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8080", 200),
        ({}, "127.0.0.1", 200),
        ({}, "[::1]:8080", 200),
        ({}, "rebound.example:8080", 403),
        ({"door_allowed_hosts": "sie.example"}, "sie.example:443", 200),
        ({"door_allowed_hosts": "sie.example"}, "127.0.0.1:8080", 200),
        ({"door_allowed_hosts": "sie.example"}, "other.example", 403),
        ({"host": "0.0.0.0"}, "sie.example", 200),
        (TOKENS, "sie.example", 200),
    ],
)
def test_a_foreign_host_header_is_refused(settings, host, status):
    headers = {"Host": host, "Authorization": "a-token"}
    assert post(door_of(**settings)[0], headers=headers).status_code == status


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        ("", "https://evil.example", 403),
        ("", "null", 403),
        ("", "http://[", 403),
        ("", "http://localhost:8080", 200),
        ("https://a.example", "https://a.example", 200),
        ("https://a.example", "https://evil.example", 403),
        ("*", "https://evil.example", 200),
    ],
)
def test_web_pages_call_where_their_origin_may(origins, origin, status):
    headers = {"Host": "localhost:8080", "Origin": origin}
    assert post(door_of(door_cors_origins=origins)[0], headers=headers).status_code == status


@pytest.mark.parametrize("origin", ["https://evil.example", None])
def test_watchers_are_limited_and_foreign_origins_refused(origin):
    async def watch(port: int) -> list[bool]:
        headers = {"Origin": origin} if origin else {}
        async with aiohttp.ClientSession() as session:
            told, watching = [], []
            for _ in range(3):
                try:
                    watched = await session.ws_connect(f"http://127.0.0.1:{port}/ws/status", headers=headers)
                    watching.append(watched)
                    told.append((await watched.receive_json(timeout=30))["ready"])
                except aiohttp.WSServerHandshakeError:
                    told.append(False)
            return told

    with listening(door_of(DoorLimits(num_watchers=2))[0]) as port:
        assert asyncio.run(watch(port)) == ([False] * 3 if origin else [True, True, False])


def test_probes_refuse_foreign_host_headers():
    assert knock(door_of()[0], lambda client: client.get("/", headers={"Host": "evil.example"})).status_code == 403


def test_a_large_body_is_decoded_beside_the_loop(monkeypatch):
    threads = []

    def measured(*given):
        threads.append(threading.current_thread())
        return 1

    monkeypatch.setattr("sie_triton.doors.endpoint.num_values", measured)
    for size in (10, 100_000):
        assert post(door_of()[0], {"items": ["a" * size]}).status_code == 200
    assert [each is threading.main_thread() for each in threads] == [True, False]


@in_loop
async def test_an_upload_ended_for_others_gets_the_reason():
    all_memory = MemoryBudget(10, slow_s=-1.0)
    with all_memory.held() as slow, all_memory.held() as other:
        messages = iter([{"type": "http.request", "body": b"x" * 8, "more_body": True}])

        async def receive():
            for message in messages:
                return message
            other.take(5)
            return await asyncio.Event().wait()

        with pytest.raises(Failure) as failure:
            await body.read_body(receive, {}, 100, slow, DoorLimits(body_timeout_s=600.0))
        assert (failure.value.status, all_memory.used) == (503, 5)


def test_each_part_of_a_body_extends_its_time():
    """The second part comes after the time of the body, but within that of the first part."""
    messages = [{"type": "http.request", "body": b"x" * 600, "more_body": True}, {"type": "http.request", "body": b"y"}]

    async def run():
        async def receive():
            if len(messages) == 1:
                await asyncio.sleep(0.3)
            return messages.pop(0)

        with MemoryBudget(1000).held() as held:
            return await body.read_body(receive, {}, 1000, held, DoorLimits(body_timeout_s=0.1, body_bytes_per_s=1))

    assert asyncio.run(run()) == b"x" * 600 + b"y"
