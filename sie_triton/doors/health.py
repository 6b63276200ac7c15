"""Routes for liveness, readiness, health, status and metrics of the server. Only the probes need no token.

Prometheus → /metrics → this process, the controller, tritonserver
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from sie_triton.doors.body_codec import JSON, write_json
from sie_triton.doors.counts import exposition
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, get
from sie_triton.doors.failures import Failure
from sie_triton.doors.openapi import TEXT, operation, probe
from sie_triton.doors.schemas import BOOLEAN, INTEGER, NUMBER, STRING, fields, several
from sie_triton.doors.served import state_of
from sie_triton.doors.server_metrics import EXPOSITION, read_parts

# Close codes of a WebSocket, from RFC 6455 and its registry.
POLICY, TRY_AGAIN_LATER = 1008, 1013

STARTED = time.monotonic()

# JSON schema of the status, as far as every status has it.
MODEL = fields({"name": STRING, "state": STRING, "memory_bytes": INTEGER, "queue_depth": INTEGER}, "name", "state")
STATUS = fields(
    {
        "timestamp": NUMBER,
        "ready": BOOLEAN,
        "server": fields({"version": STRING, "uptime_seconds": NUMBER}, "version", "uptime_seconds"),
        "memory": fields({"used_bytes": INTEGER, "limit_bytes": INTEGER, "pressure_bytes": INTEGER}),
        "models": several(MODEL),
    },
    "timestamp",
    "ready",
    "server",
    "memory",
    "models",
)


def routes(door: Door) -> list[BaseRoute]:
    latest = LatestStatus(door, status)
    of_health = operation("Health of the server.", answer={"type": "object"})
    of_status = operation("Status of the server and its models.", answer=STATUS)
    of_metrics = operation("Metrics of the whole server, in Prometheus' text format.", answer=STRING, types=[TEXT])
    return [
        get("/healthz", DoorEndpoint(door, healthz, is_open=True, document=probe("Liveness of the door."))),
        get("/readyz", DoorEndpoint(door, readyz, is_open=True, document=probe("Readiness of the server."))),
        get("/health", DoorEndpoint(door, health, document=of_health)),
        get("/status", DoorEndpoint(door, latest.answer, document=of_status)),
        get("/metrics", DoorEndpoint(door, metrics, document=of_metrics)),
        WebSocketRoute("/ws/status", Watching(door, latest), name="watch"),
        WebSocketRoute("/ws/cluster-status", Watching(door, LatestStatus(door, cluster_status)), name="watch_cluster"),
    ]


async def healthz(request: DoorRequest) -> Response:
    return PlainTextResponse("ok")


async def readyz(request: DoorRequest) -> Response:
    """Answer 503 while this process drains, while Triton does not respond, and while models are preloaded."""
    trouble = await _trouble(request.door)
    return PlainTextResponse(trouble, 503) if trouble else PlainTextResponse("ok")


async def metrics(request: DoorRequest) -> Response:
    """Answer with the metrics of all parts that respond; the gauge `sie_up` is 0 for a part that does not."""
    own = await asyncio.to_thread(exposition)
    return Response(own + await read_parts(request.door.backend.metric_parts()), media_type=EXPOSITION)


async def health(request: DoorRequest) -> Answer:
    return request.answer(await capacity(request.door, str(request.header("host") or "")))


async def capacity(door: Door, url: str = "") -> dict[str, Any]:
    """Return the workers of the server, or of the cluster, in the format of SIE's clients; `url` is the server's."""
    if (of_cluster := await door.backend.capacity()) is not None:
        return dict(of_cluster)
    told = await status(door)
    loaded = told["loaded_models"]
    gpu_types = [door.settings.gpu_type] if door.settings.gpu_type else []
    worker = {
        "url": url,
        "name": told["name"],
        "gpu": door.settings.gpu_type,
        "gpu_count": told["gpu_count"],
        "healthy": told["ready"],
        "queue_depth": sum(each["queue_depth"] for each in told["models"]),
        "loaded_models": loaded,
    }
    return {
        "type": "server",
        "status": "healthy" if told["ready"] else "unhealthy",
        "cluster": {"worker_count": 1, "gpu_count": told["gpu_count"], "models_loaded": len(loaded)},
        "configured_gpu_types": gpu_types,
        "live_gpu_types": gpu_types,
        "workers": [worker],
    }


async def cluster_status(door: Door) -> dict[str, Any]:
    """Return the capacity with the models, as SIE's clients watch a gateway."""
    told, states = await asyncio.gather(capacity(door), door.served.states())
    models = [
        {
            "name": name,
            "state": state_of(each),
            "worker_count": sum(name in worker["loaded_models"] for worker in told["workers"]),
            "total_queue_depth": each["pending"],
        }
        for name, each in sorted(states.models.items())
    ]
    return {"timestamp": time.time(), "cluster": told["cluster"], "workers": told["workers"], "models": models}


async def status(door: Door) -> dict[str, Any]:
    """Return the status of the server, from the controller and Triton."""
    trouble, states = await asyncio.gather(_trouble(door), door.served.states())
    models = [
        {
            "name": name,
            "state": state_of(each),
            "loaded": state_of(each) == "loaded",
            "memory_bytes": each["memory_bytes"],
            "device": each.get("device"),
            "copies": each.get("copies", []),
            "queue_depth": each["pending"],
            "queue_pending_items": each["pending"],
            "traffic": each["traffic"],
        }
        for name, each in sorted(states.models.items())
    ]
    settings, gpus = door.settings, states.gpus
    return {
        "timestamp": time.time(),
        "ready": not trouble,
        "name": "sie-triton",
        "machine_profile": settings.gpu_type or settings.device,
        "pool_name": "default",
        "gpu_count": len(gpus) if settings.gpu_count is None else settings.gpu_count,
        "bundle": settings.bundle,
        "bundle_config_hash": "",
        "loaded_models": [each["name"] for each in models if each["loaded"]],
        "max_batch_requests": settings.max_batch_requests,
        "server": {"version": version("sie-triton"), "uptime_seconds": round(time.monotonic() - STARTED, 1)},
        "memory": _memory(states.memory, settings.memory_pressure_threshold_percent),
        "gpus": gpus,
        "models": models,
        "counters": {},
        "histograms": {},
    }


def _memory(states: Mapping[str, Any], threshold_percent: float) -> dict[str, Any]:
    """Return the memory of all devices, with the use beyond which models are evicted; empty without a controller."""
    if not states:
        return {}
    of_all = {name: figure for name, figure in states.items() if name != "devices"}
    return {**of_all, "pressure_bytes": int(states["limit_bytes"] * threshold_percent / 100)}


class LatestStatus:
    """The answer of `ask` as JSON, cached for `status_period_s`: many clients cost one question a period.

    Belongs to one event loop.
    """

    def __init__(self, door: Door, ask: Callable[[Door], Awaitable[dict[str, Any]]]) -> None:
        self._door, self._asked = door, ask
        self._latest: asyncio.Task[bytes] | None = None
        self._latest_at = 0.0

    async def answer(self, request: DoorRequest) -> Response:
        return Response(await self.text(), media_type=JSON)

    async def text(self) -> bytes:
        now = time.monotonic()
        if self._latest is None or (self._latest.done() and now - self._latest_at >= self._door.limits.status_period_s):
            self._latest, self._latest_at = asyncio.create_task(self._ask()), now
        return await asyncio.shield(self._latest)

    async def _ask(self) -> bytes:
        return write_json(await self._asked(self._door))


class Watching:
    """ASGI application of a WebSocket: sends the latest status to every watcher each `status_period_s`.

    Belongs to one event loop.
    """

    def __init__(self, door: Door, latest: LatestStatus) -> None:
        self._door = door
        self._latest = latest
        self._num_watchers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._door.trust.check(dict(scope["headers"]))
        except Failure:
            await send({"type": "websocket.close", "code": POLICY})
            return
        if self._num_watchers >= self._door.limits.num_watchers:
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
            return
        self._num_watchers += 1
        try:
            await self._send_status(receive, send)
        finally:
            self._num_watchers -= 1

    async def _send_status(self, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        gone = asyncio.create_task(_disconnected(receive))
        try:
            while not gone.done():
                await send({"type": "websocket.send", "text": (await self._latest.text()).decode()})
                await asyncio.wait([gone], timeout=self._door.limits.status_period_s)
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    """Wait until a watcher disconnects; ignore what it sends."""
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _trouble(door: Door) -> str:
    if door.is_draining:
        return "draining"
    if not await door.backend.is_live():
        return door.backend.away
    num = door.preloads.num_loading()
    return f"{num} models are being preloaded" if num else ""
