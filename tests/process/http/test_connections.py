"""The controller with clients that hold many connections."""

import asyncio
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import uvicorn
from aiohttp import ClientSession
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from benchmarks.ports import free_ports
from sie_triton.http.limits import ConnectionLimits
from sie_triton.http.server import serving
from sie_triton.system.processes.limits import MAX_DESCRIPTORS as MAX
from sie_triton.system.processes.limits import raise_limit
from tests.support.controller import wait_for
from tests.support.http_clients import client_of

MAX_DESCRIPTORS = 128
NUM_HOSTILE = 300
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: "


@contextmanager
def controller(directory: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A controller without a tritonserver, and its port."""
    port, grpc_port = free_ports(2)
    settings = {"data_dir": directory, "controller_port": port, "grpc_port": grpc_port, "device": "cpu"}
    command = [sys.executable, "-m", "sie_triton.cli", "controller"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))

    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=limit)
    try:
        wait_for(lambda: answers(port))
        yield psutil.Process(process.pid), port
    finally:
        process.terminate()
        assert process.wait(30) == 0


def answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer:
        return answer.status == 200
    return False


def connected(port: int, first: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(first)
    return connection


def test_more_connections_than_descriptors_shut_out_no_client(tmp_path):
    """Some clients send nothing, some half a request, some keep a connection after an answer, some come again."""
    whole = HALF_A_HEAD + b"x\r\n\r\n"
    with controller(tmp_path) as (process, port), ExitStack() as held:
        for first in (b"", HALF_A_HEAD, whole, b""):
            for i in range(NUM_HOSTILE // 2):
                held.enter_context(connected(port, first))
                if i % 25 == 0:
                    assert answers(port)
        assert process.num_fds() < MAX_DESCRIPTORS
        assert answers(port)
    assert (tmp_path / "log").read_text() == ""


@pytest.fixture
def events() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


def test_the_connection_of_a_request_in_progress_is_kept(events):
    """If a request is in progress on every connection, a new connection is told to come later."""

    async def run() -> None:
        may_end, num_begun = asyncio.Event(), 0

        async def handle(request: Request) -> Response:
            nonlocal num_begun
            num_begun += 1
            await may_end.wait()
            return PlainTextResponse(request.url.path)

        async with client_of(Router([Route("/{name}", handle)]), max_connections=2) as session:
            first = asyncio.create_task(text_of(session, "/1"))
            while num_begun < 1:
                await asyncio.sleep(0)
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)
                writer.write(HALF_A_HEAD)
            second = asyncio.create_task(text_of(session, "/2"))
            while num_begun < 2:
                await asyncio.sleep(0)
            async with session.get("/3") as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
            may_end.set()
            assert await asyncio.gather(first, second) == ["/1", "/2"]

    events.run_until_complete(asyncio.wait_for(run(), 60))


def test_the_program_decides_when_its_server_ends(events):
    """A sidecar answers probes until its work is done, however long ago SIGTERM came."""

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def run() -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        async with client_of(Router([Route("/healthz", health)])) as session:
            os.kill(os.getpid(), signal.SIGTERM)
            await stopped.wait()
            await asyncio.sleep(0.5)  # uvicorn looks ten times a second whether it should exit
            assert await text_of(session, "/healthz") == "ok"

    events.run_until_complete(asyncio.wait_for(run(), 60))


async def text_of(session: ClientSession, path: str) -> str:
    async with session.get(path) as answer:
        return await answer.text()


@pytest.mark.parametrize(("before", "after"), [((64, 512), (512, 512)), ((512, 512), (512, 512))])
def test_a_process_gets_as_many_descriptors_as_the_system_allows(before, after):
    program = "import resource; from sie_triton.system.processes.limits import raise_limit; raise_limit(); "
    program += "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    assert subprocess.check_output([sys.executable, "-c", program], preexec_fn=limit, text=True) == f"{after}\n"


def test_a_limit_beyond_reason_is_not_taken(monkeypatch):
    given: list[tuple[int, int]] = []
    for hard in (2**30, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (1024, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
        raise_limit()
    assert given == [(MAX, 2**30), (MAX, resource.RLIM_INFINITY)]


STOPPED_DURING_WORK = """
import sys, threading
from pathlib import Path
from sie_triton.controller import run as module
from sie_triton.records.serving_file import Serving
from sie_triton.settings import read_settings
settings = read_settings(data_dir=Path(sys.argv[1]), controller_port=int(sys.argv[2]), device="cpu")
Serving((), {"data_dir": sys.argv[1]}, "/").write()
closed = threading.Event()

class Control:
    def answers(self):
        print("asked", flush=True)
        closed.wait()
        raise ValueError("Cannot invoke RPC on closed channel!")

    close = closed.set

module.ModelControl = lambda *_: Control()
module.run(settings)
"""


def test_a_stop_during_a_call_to_triton_is_silent(tmp_path):
    command = [sys.executable, "-c", STOPPED_DURING_WORK, str(tmp_path), str(free_ports(1)[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.terminate()
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")


def test_an_idle_server_wakes_for_the_date_only_and_ends_at_once(monkeypatch):
    turns, on_tick = [], uvicorn.Server.on_tick

    async def counted(server: uvicorn.Server, counter: int) -> bool:
        turns.append(counter)
        return await on_tick(server, counter)

    async def served() -> None:
        async with serving(Router(), "127.0.0.1", 0, 4, limits=ConnectionLimits(date_s=3600)) as port:
            async with ClientSession() as client, client.get(f"http://127.0.0.1:{port}/") as response:
                assert "date" in response.headers
            await asyncio.sleep(0.5)

    monkeypatch.setattr(uvicorn.Server, "on_tick", counted)
    asyncio.run(asyncio.wait_for(served(), 60))
    assert turns == [0, 0]
