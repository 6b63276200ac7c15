"""A door in this process, before a backend at our seam."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager

import httpx
import numpy as np

from sie_triton.doors.app import application
from sie_triton.doors.backend import States
from sie_triton.doors.endpoint import Door
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.websocket import WebSocket
from sie_triton.errors import InputError, Unreachable
from sie_triton.http import server as http_server
from sie_triton.http.server import HttpServer
from sie_triton.settings import read_settings

TIMING = dict.fromkeys(
    [f"{n}_ms" for n in ("queue", "preprocess", "batch_wait", "inference", "postprocess", "total", "loading")], 1.0
)


class FakeBackend:
    """Fake of the routes' seam to Triton. `failure` is raised; `asked` are the arguments of each call."""

    away = "Triton does not answer"
    is_beside_server = True
    grpc_port = 0

    def __init__(self) -> None:
        self.cut = set()  # indices of truncated items
        self.asked = []
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.was_cancelled = False
        self.dims = 4
        self.outputs = ["dense"]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def encode(self, model, items, seconds, parameters):
        self.asked.append((model, items, seconds, parameters))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.failure is not None:
            raise self.failure
        arrays = {name: np.ones(self.dims, np.float32) for name in self.outputs}
        shared = {**arrays, "token_count": 1, "timing": TIMING}
        return [{**shared, **_id(item), **self._mark(i)} for i, item in enumerate(items)]

    async def score(self, model, query, items, seconds, parameters):
        self.asked.append((model, query, items, parameters))
        last_first = enumerate(reversed(range(len(items))))
        scores = [{"item_id": f"item-{i}", "score": i / 16, "rank": rank, **self._mark(i)} for rank, i in last_first]
        return {"model": model, "scores": scores, "token_count": 3, "timing": TIMING}

    async def extract(self, model, items, labels, entities, seconds, parameters):
        self.asked.append((model, items, labels, entities, parameters))
        if bad := [i for i, item in enumerate(items) if item.get("text") == "bad"]:
            raise InputError.at(f"text[{bad[0]}]", "is bad")
        if self.failure is not None:
            raise self.failure
        shared = {"relations": [], "token_count": 1, "timing": TIMING}
        return [{**shared, **_id(item), **self._mark(i)} for i, item in enumerate(items)]

    def _mark(self, i):
        return {"truncated": True} if i in self.cut else {}

    async def ask(self, method, **_):
        raise Unreachable("no Triton")

    async def capacity(self):
        return None

    async def states(self):
        return States({}, {}, {}, time.monotonic())

    async def names(self):
        return []

    async def is_live(self):
        return self.failure is None


def _id(item):
    return {"id": item["id"]} if "id" in item else {}


def door_of(limits: DoorLimits = DoorLimits(), **settings: object) -> tuple[Door, FakeBackend]:
    backend = FakeBackend()
    return Door(read_settings(**settings), backend, limits), backend


def knock(door: Door, act: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> httpx.Response:
    """Return the response of `act` with an HTTP client of that door, in this process, without a socket."""

    async def run():
        transport = httpx.ASGITransport(application(door), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await act(client)

    return asyncio.run(run())


def post(door: Door, body: object = None, path: str = "/v1/encode/org/m", **options: object) -> httpx.Response:
    given = {"json": {"items": ["a"]} if body is None else body, **options}
    return knock(door, lambda client: client.post(path, **given))


@contextmanager
def listening(door: Door):
    """Serve the door on a socket, and yield its port."""
    server = HttpServer(application(door), door.connections, 10, WebSocket, door.limits.connection)
    listener = http_server.listening("127.0.0.1", 0, reuse_port=False)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()
