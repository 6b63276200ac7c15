"""The server beside a sidecar: its Triton, its controller, and the records that it shares with the stages."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import Request

import aiohttp
from grpc import aio
from tritonclient.grpc import service_pb2

from sie_triton.client.failures import was_reached
from sie_triton.client.grpc_aio import end_of
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import OK, UNAVAILABLE
from sie_triton.contract.names import triton_name
from sie_triton.controller.token import find_token
from sie_triton.doors.backend import States
from sie_triton.doors.server_metrics import read_parts
from sie_triton.doors.triton import TritonBackend
from sie_triton.records.calls import CallBook
from sie_triton.records.serving_file import read_serving
from sie_triton.settings import Settings

SERVICE = "/inference.GRPCInferenceService"

# The shortest backoff to a Triton that was restarted, and no limits of size: NATS and the payload store have theirs.
CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True, slots=True)
class Response:
    """Status, text and body of a response, the first two as in gRPC; `waited_s`: the time before its call, if any."""

    status: int
    text: str
    body: bytes
    waited_s: float = field(default=0.0, compare=False)

    @property
    def is_ok(self) -> bool:
        return self.status == OK


class LocalTriton:
    """gRPC channel to Triton. Belongs to one event loop."""

    def __init__(self, settings: Settings, limits: SidecarLimits = SidecarLimits()) -> None:
        self._limits = limits
        self._channel = aio.insecure_channel(f"{settings.inner_host}:{settings.grpc_port}", options=CHANNEL)
        self._calls: dict[str, Any] = {}

    async def close(self) -> None:
        await self._channel.close()

    async def call(self, method: str, request: bytes, seconds: float) -> Response:
        """Call a method of Triton's service. A call that fails has its status and text.

        If this is cancelled, the call runs to its end and its response is dropped: a Triton up to 24.12 can crash if a
        client cancels a call at the moment of the response.
        """
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(f"{SERVICE}/{method}")
        try:
            running = call(request, timeout=seconds)
            await end_of(running)
            return Response(OK, "", await running)
        except aio.AioRpcError as exc:
            return Response(exc.code().value[0], exc.details() or "", b"")

    async def is_ready(self) -> bool:
        response = await self.call("ServerReady", b"", self._limits.question_s)
        return response.is_ok and bool(service_pb2.ServerReadyResponse.FromString(response.body).ready)

    async def names(self) -> list[str]:
        """Return the names of all ready models, ensembles and steps; empty if Triton does not answer."""
        response = await self.call("ModelStatistics", b"", self._limits.question_s)
        if not response.is_ok:
            return []
        return [each.name for each in service_pb2.ModelStatisticsResponse.FromString(response.body).model_stats]


def is_away(response: Response) -> bool:
    """Return True if Triton was not reached, or ended during the call: the status of a busy Triton has other texts."""
    return response.status == UNAVAILABLE and (
        not was_reached(response.text) or any(text in response.text for text in BROKEN)
    )


# gRPC's texts of a connection that broke during a call.
BROKEN = ("Socket closed", "Connection reset", "recvmsg", "Broken pipe", "GOAWAY", "connection attempt", "EOF")


class Found(NamedTuple):
    """Models of a server, by Triton's names: all that it serves, and the files of those that were added to it."""

    served: frozenset[str]
    added: dict[str, bytes]


class ServerModels:
    """The controller of the server beside this sidecar."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = f"http://{settings.inner_host}:{settings.controller_port}/v1/models"
        self._session: aiohttp.ClientSession | None = None

    def found(self) -> Found | None:
        """Return the server's models as its data directory has them; None if no server has started. Reads files."""
        serving = read_serving(self._settings.data_dir)
        if serving is None:
            return None
        added = {path.stem: path.read_bytes() for path in serving.added_dir.glob("*.yaml")}
        return Found(frozenset(map(triton_name, serving.models)), added)

    async def add(self, text: bytes) -> tuple[int, str]:
        """Serve the model of a file; return HTTP's status and the reason. Raise aiohttp's ClientError."""
        return await self._change("PUT", self._url, text)

    async def serve_known(self, model: str) -> tuple[int, str]:
        """Serve a known model, by Triton's name."""
        return await self._change("PUT", f"{self._url}/{quote(model, safe='')}", b"")

    async def remove(self, model: str) -> tuple[int, str]:
        return await self._change("DELETE", f"{self._url}/{quote(model, safe='')}", b"")

    async def _change(self, method: str, url: str, body: bytes) -> tuple[int, str]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300.0))
        token = find_token(self._settings.data_dir, self._settings.admin_token)
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.request(method, url, data=body, headers=headers) as answer:
            return answer.status, (await answer.text())[:1000].strip()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


@dataclass
class LocalServer:
    """The parts of the server that a sidecar uses. Belongs to one event loop.

    `states` returns the states of all models. `calls` is the record in which the stages look whether a client still
    waits. `metric_parts` returns requests for the metrics of its parts, by name, whose answers are in memory for one
    scraper at a time.
    """

    triton: LocalTriton
    states: Callable[[], Awaitable[States]]
    models: ServerModels
    calls: CallBook
    metric_parts: Callable[[], Mapping[str, Request]] = dict
    _scraping: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, settings: Settings) -> "LocalServer":
        backend, models, calls = TritonBackend(settings), ServerModels(settings), CallBook(settings.status_dir)
        return cls(LocalTriton(settings), backend.states, models, calls, backend.metric_parts)

    async def metrics(self) -> bytes:
        """Return the metrics of Triton and the controller."""
        async with self._scraping:
            return await read_parts(self.metric_parts())

    async def close(self) -> None:
        await self.triton.close()
        await self.models.close()
