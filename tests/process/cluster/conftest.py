"""A real nats-server, gateways' queues and sidecars in this process; Triton is a double at its seam."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
import yaml
from aiohttp import ClientSession
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError
from tritonclient.grpc import service_pb2

from sie_triton.cluster import subjects
from sie_triton.cluster.config.api import application
from sie_triton.cluster.config.run import ConfigService
from sie_triton.cluster.config.streams import Streams
from sie_triton.cluster.connection import connect, listen
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.limits import ClusterLimits, ConfigLimits, GatewayLimits, SidecarLimits
from sie_triton.cluster.permissions import CONFIG, GATEWAY, OPERATOR, SIDECAR
from sie_triton.cluster.sidecar.server import Found, LocalServer, Response
from sie_triton.cluster.sidecar.sidecar import Sidecar
from sie_triton.cluster.workers import Workers
from sie_triton.contract.names import triton_name
from sie_triton.doors.backend import States
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings, read_settings
from tests.conftest import tiny_model_file
from tests.support.http_clients import client_of
from tests.support.nats import NatsServer

Limits = TypeVar("Limits", bound=ClusterLimits)

MODEL, OTHER = "t__m", "t__other"
NAMES = [name for model in (MODEL, OTHER) for name in (model, f"{model}-preprocess", f"{model}-score")]


# Answers of a Triton that is busy, and of one that ended during the call.
BUSY = Response(14, "in ensemble 't__m', [busy retry=5] 512 requests are in progress", b"")
DIED = Response(14, "Socket closed", b"")


class FakeTriton:
    """Double of a sidecar's Triton: it answers with the request's id, or as `behave` does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[str] = []
        self.ready = True
        self.resident = {MODEL, OTHER}
        self.further: set[str] = set()
        self.limit_bytes = 10_000
        self.devices: list[str] = []
        self.behave: Callable[[str], Awaitable[Response | None]] | None = None

    def answer(self, response: Response) -> None:
        """Answer each request so."""

        async def answer(_: str) -> Response:
            return response

        self.behave = answer

    def take(self, seconds: float) -> None:
        """Answer each request after so long."""

        async def take(_: str) -> None:
            await asyncio.sleep(seconds)

        self.behave = take

    def hold(self) -> asyncio.Event:
        """Answer no request before the event is set."""
        gate = asyncio.Event()

        async def wait(_: str) -> None:
            await gate.wait()

        self.behave = wait
        return gate

    async def call(self, method: str, request: bytes, seconds: float) -> Response:
        if not self.ready:
            return Response(14, "failed to connect to all addresses", b"")
        if method in ("ModelConfig", "ModelMetadata"):
            asked = service_pb2.ModelMetadataRequest.FromString(request).name
            if asked not in await self.names():
                return Response(5, f"Request for unknown model: '{asked}' is not found", b"")
        if method == "ModelConfig":
            return Response(0, "", b"")  # a configuration with defaults
        if method != "ModelInfer":
            return Response(0, "", f"{method} of {self.name}".encode())
        message = service_pb2.ModelInferRequest.FromString(request)
        self.seen.append(message.id)
        found = await self.behave(message.id) if self.behave else None
        return found or Response(0, "", service_pb2.ModelInferResponse(id=message.id).SerializeToString())

    async def is_ready(self) -> bool:
        return self.ready

    async def names(self) -> list[str]:
        return [*NAMES, *(name for each in self.further for name in (each, f"{each}-score"))]

    async def states(self) -> States:
        models = {
            name.replace("__", "/"): {
                "state": "resident" if name in self.resident else "cold",
                "memory_bytes": 1000,
                "idle_s": 1.0,
            }
            for name in (MODEL, OTHER, *self.further)
        }
        memory = {"limit_bytes": self.limit_bytes, "used_bytes": 2000, "devices": [{"device": d} for d in self.devices]}
        return States({}, models, memory, time.monotonic())


class FakeServer:
    """Double of the server beside a sidecar: it takes model files, or answers as told by `answers`."""

    def __init__(self) -> None:
        self.served, self.added = {"t__own"}, {}
        self.answers: dict[bytes, tuple[int, str] | Exception] = {}
        self.changes: list[str] = []
        self.known: set[str] = set()
        self.asked: list[str] = []
        self.triton: FakeTriton | None = None

    async def serve_known(self, model: str) -> tuple[int, str]:
        self.asked.append(model)
        if model not in self.known:
            return 404, f"{model} is not served"
        assert self.triton is not None
        self.triton.further.add(model)
        return 200, ""

    def found(self) -> Found:
        return Found(frozenset({*self.served, *self.added}), dict(self.added))

    async def add(self, text: bytes) -> tuple[int, str]:
        self.changes.append(f"add {text.decode()[:40]}")
        answer = self.answers.get(text, (200, ""))
        if isinstance(answer, Exception):
            raise answer
        if answer[0] == 200:
            self.added[triton_name(name_in(text))] = text
        return answer

    async def remove(self, model: str) -> tuple[int, str]:
        self.changes.append(f"remove {model}")
        self.served.discard(model)
        return (200, "") if self.added.pop(model, None) else (404, "is not served")

    async def close(self) -> None:
        pass


def model_file(name: str, weights: str = "/models/m") -> bytes:
    """Return a model file without anything of a machine."""
    return tiny_model_file(name, weights).encode()


def name_in(text: bytes) -> str:
    return yaml.safe_load(text)["sie_id"]


class Cluster:
    """Gateways and sidecars of one queue, made on demand, and closed together; a config service makes its streams."""

    def __init__(self, server: NatsServer, root: Path, limits: Mapping[str, Any]) -> None:
        self.server, self._limits = server, limits
        self._root = root
        self._stack = AsyncExitStack()
        self._num = 0
        self.heartbeat_ms = 100
        self.servers: dict[str, FakeServer] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.js: JetStreamContext

    def settings(self, **more: object) -> Settings:
        self._num += 1
        given = {"health_publish_interval_ms": self.heartbeat_ms, "max_concurrent_batches": 100}
        return read_settings(**given | {"data_dir": self._root / str(self._num)} | more)

    def limits(self, kind: type[Limits]) -> Limits:
        """Return the limits of a kind of process: those of the cluster that it has."""
        return kind(**{each.name: self._limits[each.name] for each in fields(kind) if each.name in self._limits})

    async def gateway(self, **more: object) -> Queue:
        settings = self.server.user(self.settings(**more), GATEWAY)
        settings = settings.model_copy(update={"nats_url": more["nats_url"]}) if "nats_url" in more else settings
        return await self._stack.enter_async_context(Queue(settings, self.limits(GatewayLimits)))

    def sidecar(self, name: str, at: str = "", **more: object) -> tuple[Sidecar, FakeTriton]:
        """Return a sidecar that has not started, with its Triton; `at` is the pool of its work."""
        triton, models = FakeTriton(name), self.servers.setdefault(name, FakeServer())
        settings = self.server.user(self.settings(worker_id=name, **more), SIDECAR)
        settings = settings.model_copy(update={"nats_url": more["nats_url"]}) if "nats_url" in more else settings
        models.triton = triton
        calls = CallBook(settings.status_dir)
        server = LocalServer(triton, triton.states, models, calls)
        return Sidecar(settings, server, at, self.limits(SidecarLimits)), triton

    async def worker(self, name: str, **more: object) -> tuple[Sidecar, FakeTriton]:
        sidecar, triton = self.sidecar(name, **more)
        return await self._stack.enter_async_context(sidecar), triton

    async def pair(self, **more: object) -> tuple[Queue, Sidecar, FakeTriton]:
        """Return a gateway, and a sidecar that it knows with its Triton."""
        queue, (sidecar, triton) = await self.gateway(**more), await self.worker("w", **more)
        await served(queue)
        return queue, sidecar, triton

    async def config(self, **more: object) -> tuple[ConfigService, ClientSession]:
        """Return a config service, and a client of its HTTP with its admin token."""
        settings = self.server.user(self.settings(admin_token="admin", **more), CONFIG)
        service = await self._stack.enter_async_context(ConfigService(settings, self.limits(ConfigLimits)))
        app = application(service.store, service.workers, settings, "admin")
        headers = {"Authorization": "Bearer admin"}
        client = await self._stack.enter_async_context(client_of(app, headers=headers))
        await service.store.bucket.are_known.wait()
        return service, client

    async def make_streams(self) -> None:
        """Do the part of a config service that every cluster needs."""
        settings = self.server.user(self.settings(), CONFIG)
        client = await connect(settings, CONFIG, "streams")
        self._stack.push_async_callback(client.close)
        limits = self.limits(ConfigLimits)
        self.streams = Streams(client, client.jetstream(timeout=2), settings, Workers(limits), limits)
        await listen(client, subjects.ALL_WORKERS, self.streams._workers.hear)
        await self.streams._open_common()
        await self.streams.listen()
        await self.streams._open("default")  # else gateways and sidecars would have to wait for it
        self.tasks.append(asyncio.create_task(self.streams.keep()))

    async def limit_queue(self, **limits: object) -> None:
        """Give the streams other limits."""
        self.streams._settings = self.streams._settings.model_copy(update=limits)
        await self.streams._open("default")

    async def operator(self) -> JetStreamContext:
        """Return JetStream as a person with all rights sees it."""
        client = await connect(self.server.user(self.settings(), OPERATOR), OPERATOR, "operator")
        self._stack.push_async_callback(client.close)
        self.js = client.jetstream()
        return self.js

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await self._stack.aclose()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as server:
        yield server


# Limits of all clusters here, by the names of their fields.
LIMITS: dict[str, Any] = {
    "own_heartbeat_s": 0.1,
    "gateway_stale_s": 0.3,
    "heartbeat_s": 0.1,
    "bucket_retry_s": 0.05,
    "bucket_absent_s": 0.05,
    "apply_retry_s": 0.05,
    "names_s": 0.2,
    "measure_s": 0.05,
}


def in_cluster(**limits: Any) -> Callable[..., Any]:
    """Run a test in an event loop, with a cluster whose processes have these limits, and then its fixtures."""

    def decorate(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        given = [*inspect.signature(function).parameters][1:]

        @wraps(function)
        def run(**fixtures: Any) -> None:
            async def test() -> None:
                async with clustered(fixtures["nats_server"], fixtures["tmp_path"], limits) as cluster:
                    await asyncio.wait_for(function(cluster, **{name: fixtures[name] for name in given}), 120)

            asyncio.run(test())

        names = dict.fromkeys([*given, "nats_server", "tmp_path"])
        kind = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        return run

    return decorate


@asynccontextmanager
async def clustered(
    server: NatsServer, root: Path, limits: Mapping[str, Any] = MappingProxyType({})
) -> AsyncIterator[Cluster]:
    cluster = Cluster(server, root, LIMITS | limits)
    try:
        await cluster.make_streams()
        yield cluster
    finally:
        await cluster.close()


def request(name: str, model: str = MODEL) -> bytes:
    return service_pb2.ModelInferRequest(model_name=model, id=name).SerializeToString()


async def asked(queue: Queue, name: str, model: str = MODEL, seconds: float = 20) -> str:
    """Return the id in the answer to a request with this id."""
    answer, body = await queue.submit("default", model, request(name, model), seconds)
    assert answer.status == 0, answer.text
    return service_pb2.ModelInferResponse.FromString(body).id


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


async def served(queue: Queue, num_workers: int = 1) -> None:
    """Return once so many workers are ready in the eyes of a gateway."""
    await until(lambda: sum(each.is_ready for each in queue.pools.workers.alive("default")) >= num_workers)


async def left_in_stream(queue) -> int:
    try:
        info = await queue._js.stream_info(subjects.stream("default"))
    except NotFoundError:
        return 0
    return info.state.messages


async def until_empty(queue) -> None:
    while await left_in_stream(queue):
        await asyncio.sleep(0.02)
