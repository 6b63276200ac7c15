"""A gateway process and a sidecar in front of a running Triton, with a real queue between them."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from benchmarks.ports import free_ports
from sie_triton.cluster.config.run import ConfigService
from sie_triton.cluster.permissions import CONFIG, GATEWAY, PASSWORDS, SIDECAR
from sie_triton.cluster.sidecar.server import LocalServer
from sie_triton.cluster.sidecar.sidecar import Sidecar
from sie_triton.doors.backend import States
from sie_triton.settings import Settings, read_settings
from tests.server.test_serve import sie
from tests.support.controller import wait_for
from tests.support.nats import NatsServer


def sidecar_of(settings: Settings, models: Sequence[str]) -> AbstractContextManager[None]:
    """Run a sidecar on a thread; there is no controller, so that all `models` count as resident."""

    async def states() -> States:
        known = {name: {"state": "resident", "memory_bytes": 1, "idle_s": 0.0} for name in models}
        return States({}, known, {"limit_bytes": 1, "used_bytes": 0}, time.monotonic())

    @asynccontextmanager
    async def sidecar() -> AsyncIterator[None]:
        server = replace(LocalServer.of(settings), states=states)
        async with Sidecar(settings, server):
            yield
        await server.close()

    return on_a_thread(sidecar)


def config_service_of(nats: NatsServer) -> AbstractContextManager[None]:
    """Run a config service on a thread, without its HTTP: it makes the streams."""
    return on_a_thread(lambda: ConfigService(nats.user(read_settings(), CONFIG)))


@contextmanager
def on_a_thread(part: Callable[[], AbstractAsyncContextManager[object]]) -> Iterator[None]:
    async def serve() -> None:
        async with part():
            has_started.set()
            while not is_over.is_set():
                await asyncio.sleep(0.05)

    has_started, is_over = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert has_started.wait(60)
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def gateway_of(nats: NatsServer, data_dir: Path, *flags: str) -> Iterator[tuple[str, str]]:
    """Run `sie-triton gateway`; yield its HTTP and its gRPC address once it has found a worker."""
    http, grpc = free_ports(2)
    ports = [f"--door-port={http}", f"--grpc-port={grpc}"]
    user = ["--nats-user=gateway", f"--nats-password={nats.passwords[PASSWORDS[GATEWAY]]}"]
    process = sie("gateway", f"--nats-url={nats.url}", *user, f"--data-dir={data_dir}", *ports, *flags)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE gateway started\n"
        wait_for(lambda: is_ready(f"http://127.0.0.1:{http}"))
        yield f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def cluster_before(settings: Settings, models: Sequence[str], root: Path, *flags: str) -> Iterator[tuple[str, str]]:
    """Run the parts of a cluster in front of a running server; yield the gateway's addresses, as `gateway_of` does."""
    with (
        NatsServer(root) as nats,
        config_service_of(nats),
        sidecar_of(nats.user(settings, SIDECAR), models),
        gateway_of(nats, root / "gateway", *flags) as addresses,
    ):
        yield addresses


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False
