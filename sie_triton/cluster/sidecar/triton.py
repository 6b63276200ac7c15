"""The Triton beside a sidecar, called with the bytes of requests and answering with those of responses."""

from dataclasses import dataclass, field
from typing import Any

from grpc import aio
from tritonclient.grpc import service_pb2

from sie_triton.client.failures import was_reached
from sie_triton.client.grpc_aio import end_of
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.statuses import OK, UNAVAILABLE
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
