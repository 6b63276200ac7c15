"""Both clients over both transports: servers that are silent, away, come back or are none, and connections."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio  # noqa: F401, imported before a timeout runs

from sie_triton import AsyncSIEClient, BusyError, SIEClient, SIEError
from sie_triton.client.address import Address
from sie_triton.client.connections import AsyncConnection, GrpcConnection
from sie_triton.client.conversation import Conversation
from sie_triton.client.failures import NotTriton
from sie_triton.client.limits import ClientLimits
from sie_triton.client.retry import Deadline
from sie_triton.errors import Cancelled, DeadlinePassed, Unreachable
from tests.support.clients import KINDS, MODEL, raises_exactly
from tests.support.doubles import FakeTriton
from tests.support.http_servers import Told, answering


@pytest.fixture(params=["http", "grpc"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeTriton]:
    with FakeTriton(request.param) as fake:
        yield fake


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(Conversation, "_limits", ClientLimits(retry_s=0.5, first_retry_s=0.2))


def address_of(server: socket.socket) -> str:
    return "http://{}:{}".format(*server.getsockname())


# Servers that are silent, away, or come back


@KINDS
def test_a_silent_server_is_given_up_in_time(kind, fake):
    fake.is_silent = True
    with kind(fake.url, timeout=0.5) as client:
        raises_exactly(lambda: client.encode(MODEL, "a"), DeadlinePassed, f"{fake.url} did not answer")
        raises_exactly(lambda: client.encode(MODEL, ["a"] * 3000), DeadlinePassed, "timeout")
        fake.is_silent = False
        answers = client.encode(MODEL, ["a"] * 3, timeout=60)
    assert [answer["dense"].tolist() for answer in answers] == [[1]] * 3


def test_an_abandoned_connection_is_not_reused():
    """A late response must not be taken for the response to the next request."""
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
        while connections[0].recv(65536):  # the rest of the question, then the end
            pass
    for connection in connections:
        connection.close()


@KINDS
def test_a_restarted_server_is_retried(kind, fake, monkeypatch):
    monkeypatch.setattr(Conversation, "_limits", ClientLimits(first_retry_s=0.1))
    with kind(fake.url) as client:
        client.encode(MODEL, "a")
        fake.stop()
        back = threading.Timer(0.5, fake.start)
        back.start()
        client.encode(MODEL, "a")
        back.join()


@KINDS
def test_a_server_that_ends_before_it_answers_is_retried(kind, fake):
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
    with kind(fake.url, timeout=60) as client:
        assert len(client.encode(MODEL, ["a", "b"])) == 2
    thread.join()
    assert fake.num_asked >= 2


@KINDS
def test_a_server_that_never_comes_back(kind, fake, impatient):
    with kind(fake.url) as client:
        client.encode(MODEL, "a")
        fake.stop()
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=0.9), Unreachable, fake.url)
        raises_exactly(lambda: client.encode(MODEL, "a"), Unreachable, fake.url)
        fake.start()


@KINDS
@pytest.mark.parametrize("fake", ["grpc"], indirect=True)
def test_a_pause_that_outlasts_the_deadline_hides_no_failure(kind, fake, monkeypatch):
    async def oversleep(self, seconds: float) -> None:
        time.sleep(1)

    for client in (SIEClient, AsyncSIEClient):
        monkeypatch.setattr(client, "_sleep", oversleep)
    fake.stop()
    with kind(fake.url) as client:
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=0.9), Unreachable, fake.url)
    fake.start()


@pytest.mark.parametrize("kind", [GrpcConnection, AsyncConnection])
def test_a_server_that_was_not_reached_is_unreachable_also_without_time_to_ask_again(kind):
    with socket.socket() as closed:  # nobody listens
        closed.bind(("127.0.0.1", 0))
        address = Address.parse("grpc://{}:{}".format(*closed.getsockname()))

        async def ask() -> None:
            found = kind(address).ask("is_server_live", Deadline(at=time.monotonic()))
            if asyncio.iscoroutine(found):
                await found

        with pytest.raises(Unreachable, match="no server answers"):
            asyncio.run(ask())


@KINDS
def test_a_server_that_is_not_running_is_reported_unreachable(kind, fake, monkeypatch):
    monkeypatch.setattr(Conversation, "_limits", ClientLimits(first_retry_s=0.2))
    fake.stop()
    with kind(fake.url) as client:
        raises_exactly(lambda: client.encode(MODEL, "a"), Unreachable, f"{fake.url}: no server answers")
        raises_exactly(lambda: client.score(MODEL, "a", ["b"]), Unreachable, f"{fake.url}: no server answers")
        threading.Timer(0.5, fake.start).start()
        client.encode(MODEL, "a", timeout=60)  # who gives a time, waits


@KINDS
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_host_that_has_no_address(kind, transport):
    with kind(f"{transport}://no-such-host.invalid:1") as client:
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=0.9), Unreachable, "invalid:1: no server answers")


@KINDS
@pytest.mark.parametrize(("asked", "there"), [("http", "grpc"), ("grpc", "http")])
def test_the_port_of_the_other_transport(kind, asked, there):
    with FakeTriton(there) as fake, kind(f"{asked}://127.0.0.1:{fake.port}") as client:
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=0.9), Unreachable, f"{asked} port")


@contextmanager
def web_server(status: int) -> Iterator[tuple[str, list[str]]]:
    """Run a server that is not Triton, and answers with `status`; yield its address, and the paths asked for."""
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> Told:
        asked.append(request.path)
        return status, {}, b"<html>"

    with answering(answer) as port:
        yield f"http://127.0.0.1:{port}", asked


@KINDS
@pytest.mark.parametrize(("status", "error"), [(404, NotTriton), (200, NotTriton), (502, BusyError)])
def test_a_server_that_is_not_triton_is_reported(kind, status, error):
    with web_server(status) as (url, _), kind(url) as client:
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=0.9), error, "is not Triton")


@KINDS
def test_a_client_that_does_not_retry_asks_once(kind):
    with web_server(502) as (url, asked), kind(url, retry=False) as client:
        raises_exactly(lambda: client.encode(MODEL, "a"), BusyError, "answers with status 502")
    assert len(asked) == 1


@KINDS
def test_a_model_that_is_not_ours_is_refused(kind, fake):
    with kind(fake.url) as client:
        fake.outputs = ["dense"]
        raises_exactly(
            lambda: client.encode(MODEL, "a"),
            SIEError,
            "model: has no output token_count, so sie-triton did not render it",
        )


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


def test_an_unclosed_client_is_silent_when_the_program_ends(fake):
    program = f"from sie_triton import SIEClient; client = SIEClient({fake.url!r}); client.encode({MODEL!r}, 'a')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@KINDS
def test_a_closed_client_refuses_calls(kind, fake):
    with kind(fake.url) as client:
        client.encode(MODEL, "a")
        client.close()
        for items in ("a", ["a"] * 1025):
            raises_exactly(lambda items=items: client.encode(MODEL, items), Cancelled, "the client is closed")


def test_a_fork_has_connections_of_its_own(fake):
    program = f"""
import os, warnings
warnings.simplefilter("ignore")  # of 3.12, about threads
from sie_triton import SIEClient
with SIEClient({fake.url!r}) as client:
    client.encode({MODEL!r}, ["a"] * 1025)
    if child := os.fork():
        client.encode({MODEL!r}, ["a"] * 1025)
        assert os.waitpid(child, 0)[1] == 0
    else:
        os._exit(len(client.encode({MODEL!r}, ["a"] * 1025, timeout=60)) != 1025)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


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


@KINDS
def test_a_prefix_of_a_proxy_is_kept(kind):
    with FakeTriton("http") as fake, kind(f"{fake.url}/triton/") as client:
        client.encode(MODEL, "a")
        assert fake.paths == ["/triton/v2/models/org__model/infer"]


CLOSED_BY_THE_END = """
import sys, torch
from sie_triton import SIEClient
client = SIEClient(sys.argv[1], retry=False)
try:
    client.encode("org/m", "a")
except Exception as exc:
    print(type(exc).__name__)
"""


def test_a_program_may_end_without_closing_its_client():
    """PyTorch's modules make the interpreter end in another order."""
    command = [sys.executable, "-c", CLOSED_BY_THE_END, "grpc://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Unreachable\n", "")
