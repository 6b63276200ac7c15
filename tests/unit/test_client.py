"""Both clients over both transports: what they refuse themselves, and servers that are silent, away or come back."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sie_triton import AsyncSIEClient, BusyError, InputError, Item, SIEClient, SIEError
from sie_triton.client import retry
from sie_triton.errors import Cancelled, Unreachable
from tests.doubles import FakeTriton

MODEL = "org/model"


class Awaited:
    """AsyncSIEClient, called as SIEClient is."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncSIEClient(url, **options)

    def __enter__(self) -> "Awaited":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def encode(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self._client.encode(*arguments, **options))

    def score(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self._client.score(*arguments, **options))


@pytest.fixture(params=[SIEClient, Awaited], ids=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture(params=["http", "grpc"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeTriton]:
    with FakeTriton(request.param) as fake:
        yield fake


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PATIENCE_S", 0.5)
    monkeypatch.setattr(retry, "PATIENCE_S", 2.0)


def address_of(server: socket.socket) -> str:
    return "http://{}:{}".format(*server.getsockname())


def seconds_of(call: Any, error: type[Exception], match: str) -> float:
    started = time.monotonic()
    with pytest.raises(error, match=match) as caught:
        call()
    assert type(caught.value) is error
    return time.monotonic() - started


# Servers that are silent, away, or come back


def test_a_silent_server_is_given_up_in_time(kind, fake):
    fake.is_silent = True
    with kind(fake.url, timeout=0.5) as client:
        assert 0.4 < seconds_of(lambda: client.encode(MODEL, "a"), BusyError, f"{fake.url} did not answer") < 3
        assert 0.4 < seconds_of(lambda: client.encode(MODEL, ["a"] * 3000), BusyError, "timeout") < 3
        fake.is_silent = False
        answers = client.encode(MODEL, ["a"] * 3, timeout=10)
    assert [answer["dense"].tolist() for answer in answers] == [[1]] * 3


def test_a_connection_that_was_given_up_serves_nobody_else():
    """What the server says late must not be taken for the answer of the next request."""
    connections, questions = [], []
    with socket.create_server(("127.0.0.1", 0)) as server, SIEClient(address_of(server)) as client:

        def hold() -> None:
            while len(connections) < 2:
                connections.append(server.accept()[0])
                questions.append(connections[-1].recv(65536))

        thread = threading.Thread(target=hold)
        thread.start()
        for _ in range(2):
            with pytest.raises(BusyError):
                client.encode(MODEL, "a", timeout=0.2)
        thread.join(10)
        assert len(questions) == 2
        connections[0].settimeout(5)
        assert connections[0].recv(1) == b""
    for connection in connections:
        connection.close()


def test_a_server_that_is_started_again_is_asked_again(kind, fake, monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PATIENCE_S", 0.1)
    with kind(fake.url) as client:
        client.encode(MODEL, "a")
        fake.stop()
        back = threading.Timer(0.5, fake.start)
        back.start()
        client.encode(MODEL, "a")
        back.join()


def test_a_server_that_ends_before_it_answers_is_asked_again(kind, fake):
    fake.is_silent = True

    def start_again() -> None:
        while not fake.num_asked:
            time.sleep(0.01)
        fake.is_silent = False
        fake.stop()
        time.sleep(0.3)
        fake.start()

    thread = threading.Thread(target=start_again)
    thread.start()
    with kind(fake.url, timeout=20) as client:
        assert len(client.encode(MODEL, ["a", "b"])) == 2
    thread.join()
    assert fake.num_asked >= 2


def test_a_server_that_never_comes_back(kind, fake, impatient):
    with kind(fake.url) as client:
        client.encode(MODEL, "a")
        fake.stop()
        assert seconds_of(lambda: client.encode(MODEL, "a", timeout=0.5), Unreachable, fake.url) < 3
        assert seconds_of(lambda: client.encode(MODEL, "a"), Unreachable, fake.url) < 8
        fake.start()


def test_a_server_that_never_was(kind, fake, monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PATIENCE_S", 0.5)
    fake.stop()
    with kind(fake.url) as client:
        assert seconds_of(lambda: client.encode(MODEL, "a"), Unreachable, f"{fake.url}: nobody answers") < 5
        assert seconds_of(lambda: client.score(MODEL, "a", ["b"]), Unreachable, f"{fake.url}: nobody answers") < 5
        threading.Timer(1, fake.start).start()
        client.encode(MODEL, "a", timeout=20)  # who gives a time, waits


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_host_that_has_no_address(kind, transport):
    with kind(f"{transport}://no-such-host.invalid:1") as client:
        seconds_of(lambda: client.encode(MODEL, "a", timeout=0.3), Unreachable, "invalid:1: nobody answers")


@pytest.mark.parametrize(("asked", "there"), [("http", "grpc"), ("grpc", "http")])
def test_the_port_of_the_other_transport(kind, asked, there):
    with FakeTriton(there) as fake, kind(f"{asked}://127.0.0.1:{fake.port}") as client:
        seconds_of(lambda: client.encode(MODEL, "a", timeout=0.5), Unreachable, f"{asked} port")


# Connections


def num_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_closed_client_keeps_no_descriptor(fake):
    def use() -> None:
        with SIEClient(fake.url, max_concurrency=2) as client:
            client.encode(MODEL, ["a"] * 1025)

    use()
    before = num_descriptors()
    for _ in range(10):
        use()
    assert num_descriptors() <= before + 3


def test_threads_that_come_and_go_leave_no_descriptor(fake):
    with SIEClient(fake.url) as client:
        client.encode(MODEL, "a")
        before = num_descriptors()
        for _ in range(10):
            thread = threading.Thread(target=client.encode, args=(MODEL, "a"))
            thread.start()
            thread.join()
        assert num_descriptors() <= before + 3


def test_a_client_nobody_closed_is_silent_when_the_program_ends(fake):
    program = f"from sie_triton import SIEClient; client = SIEClient({fake.url!r}); client.encode({MODEL!r}, 'a')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_client_says_so(fake):
    client = SIEClient(fake.url)
    client.encode(MODEL, "a")
    client.close()
    client.close()
    for items in ("a", ["a"] * 1025):
        with pytest.raises(Cancelled, match="the client is closed"):
            client.encode(MODEL, items)


def test_closing_wakes_those_who_wait(fake):
    fake.is_silent = True
    client, raised = SIEClient(fake.url), []

    def wait() -> None:
        try:
            client.encode(MODEL, "a")
        except SIEError as exc:
            raised.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    while not fake.num_asked:
        time.sleep(0.01)
    client.close()
    thread.join(10)
    assert [type(exc) for exc in raised] == [Cancelled]


# What a client refuses itself


class Nobody:
    """No server is needed to refuse these."""

    url = "http://127.0.0.1:9"


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        (["a", {"txt": "b"}], r"items\[1\].txt: is not allowed; give a string or"),
        ([{"text": "a", "image": b"png"}], r"items\[0\].image: is not allowed"),
        ([{"id": "1"}], r"items\[0\]: has no text"),
        ([{}], r"items\[0\]: has no text"),
        ([None], r"items\[0\]: must be a string or a mapping, it is NoneType"),
        ([b"a"], r"items\[0\]: must be a string or a mapping, it is bytes"),
        ([{"text": None}], r"items\[0\].text: must be a string, it is NoneType"),
        (["\ud800"], r"items\[0\]: cannot be sent as UTF-8"),
        (None, "items: must be an item or a list of items, it is NoneType"),
        (b"a", "items: must be an item or a list of items, it is bytes"),
        (5, "items: must be an item or a list of items, it is int"),
    ],
)
def test_items(kind, transport, items, complaint):
    with kind(f"{transport}://127.0.0.1:9") as client:
        for call in (lambda: client.encode(MODEL, items), lambda: client.score(MODEL, "query", items)):
            seconds_of(call, InputError, complaint)


@pytest.mark.parametrize("query", [None, b"a", {"txt": "a"}, {}, ["a"]])
def test_queries(kind, query):
    with kind(Nobody.url) as client:
        seconds_of(lambda: client.score(MODEL, query, ["a"]), InputError, "^query")


@pytest.mark.parametrize("model", [None, "", b"a", 3])
def test_model_names(kind, model):
    with kind(Nobody.url) as client:
        seconds_of(lambda: client.encode(model, "a"), InputError, "model: must be a name such as org/name")
        seconds_of(lambda: client.score(model, "a", ["b"]), InputError, "model: must be a name such as org/name")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([("dimensions", 3)], "options: must be a mapping, it is list"),
        ({"dimensions": [3]}, "dimensions: must be a string, a number, true or false; it is list"),
        ({"dimensions": None}, "dimensions: must be a string, a number"),
        ({"dimensions": 2**63}, "dimensions: must fit into 64 bits"),
        ({"timeout": 3}, "options.timeout: is a parameter of Triton's own; give timeout=seconds"),
        ({3: 3}, "options: names must be strings"),
    ],
)
def test_options(kind, options, complaint):
    with kind(Nobody.url) as client:
        seconds_of(lambda: client.encode(MODEL, "a", options=options), InputError, complaint)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0, -1, 1e300, 10**400, "5", True])
def test_timeouts(kind, timeout):
    seconds_of(lambda: kind(Nobody.url, timeout=timeout), InputError, "timeout: must be seconds above 0")
    with kind(Nobody.url) as client:
        seconds_of(lambda: client.encode(MODEL, "a", timeout=timeout), InputError, "timeout: must be seconds above 0")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://host:8000", "asks for TLS"),
        ("grpcs://host:8001", "asks for TLS"),
        ("ftp://host:8000", "has the scheme 'ftp'"),
        ("http://host", "has no port; Triton's are 8000 for HTTP and 8001 for gRPC"),
        ("host", "has no port"),
        ("", "has no host"),
        ("http://:8000", "has no host"),
        ("http://ho st:8000", "has no host"),
        ("http://host:99999", "cannot be read"),
        ("http://[::1:8000", "cannot be read"),
        ("http://host:8000?key=1", "has more than host, port and path"),
        ("grpc://host:8001/path", "has the path '/path', and gRPC knows none"),
        ("host:8001/path", "has the path '/path', and gRPC knows none"),
        (None, "must be a string, it is NoneType"),
        (8000, "must be a string, it is int"),
    ],
)
def test_urls(kind, url, complaint):
    seconds_of(lambda: kind(url), InputError, f"^url: .*{complaint}.*; give http://host:port, grpc://host:port")


def test_a_password_is_not_repeated(kind):
    with pytest.raises(InputError, match="has a user") as caught:
        kind("http://user:secret@host:8000")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_concurrency(kind, number):
    seconds_of(lambda: kind(Nobody.url, max_concurrency=number), InputError, "max_concurrency: must be 1 or more")


def test_a_prefix_of_a_proxy_is_kept(kind):
    with FakeTriton("http") as fake, kind(f"{fake.url}/triton/") as client:
        client.encode(MODEL, "a")
        assert fake.paths == ["/triton/v2/models/org__model/infer"]


def test_no_items_no_results(kind):
    with kind(Nobody.url) as client:
        assert client.encode(MODEL, []) == []
        assert client.score(MODEL, {"text": "a", "id": "q"}, []) == {"model": MODEL, "scores": [], "query_id": "q"}


def test_an_empty_text_is_a_text(kind, fake):
    with kind(fake.url) as client:
        assert len(client.encode(MODEL, ["", Item(text="")])) == 2
