"""Triton's gRPC at the gateway (KServe v2): a client of one Triton works against many, without a change.

The request's bytes go through the queue to a worker's Triton, and its response's bytes come back, unchanged.
"""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from tritonclient.grpc import service_pb2

from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.gateway.statistics import summed
from sie_triton.cluster.messages import OK, Answer, unknown_model, with_parameters
from sie_triton.doors.backend import QUESTION_S
from sie_triton.doors.failures import Failure
from sie_triton.doors.memory import MemoryBudget
from sie_triton.doors.trust import Trust
from sie_triton.error_prefix import with_prefix
from sie_triton.errors import BusyError, InputError, SIEError
from sie_triton.settings import Settings
from sie_triton.telemetry.identity import REQUEST_ID, TRACEPARENT

SERVICE = "inference.GRPCInferenceService"

# Questions that any worker can answer for all.
OF_ANY_WORKER = ("ServerMetadata", "ModelMetadata", "ModelConfig")

# Other methods of Triton's service, and why the gateway has none.
REFUSED = {
    "ModelStreamInfer": "the gateway has no streams: every request has one answer; call ModelInfer",
    "RepositoryIndex": "the gateway has no model repository; GET /v1/models lists the models",
}
NO_METHOD = "the gateway has no such method: it serves models, and controls none"

STATUSES = {code.value[0]: code for code in grpc.StatusCode}

# Status of each of our errors' codes.
OF_ERRORS = {"INVALID_ARG": grpc.StatusCode.INVALID_ARGUMENT}

# Metadata of a call that the stages receive as request parameters.
FORWARDED = (TRACEPARENT, REQUEST_ID)

CHANNEL = [("grpc.so_reuseport", 1), ("grpc.max_send_message_length", -1)]

# Calls at a time; further ones are refused with RESOURCE_EXHAUSTED.
MAX_CALLS = 20_000

# Copies of a request in memory at a time: as received, and as sent to the queue.
COPIES = 2

Context = Any  # grpc.aio.ServicerContext


class KServe(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of Triton's service. They read and write bytes. Belongs to the event loop of its queue."""

    def __init__(self, settings: Settings, queue: Queue, memory: MemoryBudget) -> None:
        self._queue, self._memory = queue, memory
        self._trust = Trust(settings)
        self._handlers: dict[str, Callable[[bytes, Context], Awaitable[bytes]]] = {
            "ModelInfer": self._infer,
            "ModelReady": self._model_ready,
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelStatistics": self._statistics,
            **{method: self._asking(method) for method in OF_ANY_WORKER},
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, method = details.method.lstrip("/").partition("/")
        if service != SERVICE:
            return None
        handler = self._handlers.get(method)
        if handler is None:
            return _refusal(method)
        return grpc.unary_unary_rpc_method_handler(self._checked(handler))

    def _checked(self, handler: Callable[[bytes, Context], Awaitable[bytes]]) -> Any:
        """Return the handler with a check of the token, and our errors as Triton's statuses."""

        async def handle(request: bytes, context: Context) -> bytes:
            try:
                self._trust.check_token(_metadata(context).get("authorization", "").encode())
            except Failure as exc:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, exc.message)
            try:
                with self._memory.held() as held:
                    held.take(COPIES * len(request))
                    return await handler(request, context)
            except Failure as exc:  # the requests of all clients together take too much memory
                await context.abort(grpc.StatusCode.UNAVAILABLE, with_prefix(BusyError(exc.message)))
                raise AssertionError("abort raises") from exc
            except SIEError as exc:
                status = OF_ERRORS.get(exc.code) or getattr(grpc.StatusCode, exc.code)
                await context.abort(status, with_prefix(exc))
                raise AssertionError("abort raises") from exc

        return handle

    def _pool(self, context: Context) -> str:
        return self._queue.pools.chosen(_metadata(context))

    async def _infer(self, request: bytes, context: Context) -> bytes:
        arrived = monotonic()
        message = _parsed(service_pb2.ModelInferRequest, request)
        pool, name = self._pool(context), message.model_name
        if not (model := await self._queue.mentions.model_of(pool, name)):
            await context.abort(grpc.StatusCode.NOT_FOUND, unknown_model(name))
        metadata = _metadata(context)
        given = {name: metadata[name] for name in FORWARDED if name in metadata}
        left_s = _left_s(context, message) - (monotonic() - arrived)
        sent = with_parameters(request, given) if given else request
        tenant = self._trust.tenant(metadata.get("authorization", "").encode())
        answer, body = await self._queue.submit(pool, model, sent, max(0.001, left_s), tenant)
        return await _answered(answer, body, context)

    def _asking(self, method: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def ask(request: bytes, context: Context) -> bytes:
            answer, body = await self._queue.questions.ask(self._pool(context), method, request, QUESTION_S)
            return await _answered(answer, body, context)

        return ask

    async def _statistics(self, request: bytes, context: Context) -> bytes:
        """Return the sums of all workers: perf_analyzer compares two answers, which must be of the same ones."""
        answers = await self._queue.questions.ask_all(self._pool(context), "ModelStatistics", request, QUESTION_S)
        good = [body for answer, body in answers if answer.status == OK]
        return summed(good) if good else await _answered(*answers[0], context)

    async def _model_ready(self, request: bytes, context: Context) -> bytes:
        name = _parsed(service_pb2.ModelReadyRequest, request).name
        return _bytes(service_pb2.ModelReadyResponse(ready=self._queue.pools.is_served(self._pool(context), name)))

    async def _server_live(self, request: bytes, context: Context) -> bytes:
        return _bytes(service_pb2.ServerLiveResponse(live=True))

    async def _server_ready(self, request: bytes, context: Context) -> bytes:
        return _bytes(service_pb2.ServerReadyResponse(ready=self._queue.is_ready))


def _parsed(kind: Any, request: bytes) -> Any:
    try:
        return kind.FromString(request)
    except DecodeError as exc:
        raise InputError(f"the request is not a {kind.DESCRIPTOR.name} of Protocol Buffers") from exc


def _metadata(context: Context) -> dict[str, str]:
    """Return the metadata of a call that are texts."""
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


async def _answered(answer: Answer, body: bytes, context: Context) -> bytes:
    if answer.status != OK:
        await context.abort(STATUSES.get(answer.status, grpc.StatusCode.INTERNAL), answer.text)
    return body


def _left_s(context: Context, message: Any) -> float:
    """Return the time that a request has, in seconds: the timeout of its call, or its parameter `timeout`."""
    given = message.parameters["timeout"].int64_param / 1e6 if "timeout" in message.parameters else NETWORK_TIMEOUT_S
    of_call = context.time_remaining()
    return min(given or NETWORK_TIMEOUT_S, NETWORK_TIMEOUT_S if of_call is None else of_call)


def _refusal(method: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method[:80]}: {REFUSED.get(method, NO_METHOD)}")

    is_stream = method == "ModelStreamInfer"
    return grpc.stream_stream_rpc_method_handler(refuse) if is_stream else grpc.unary_unary_rpc_method_handler(refuse)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def listening(settings: Settings, queue: Queue, memory: MemoryBudget) -> aio.Server:
    """Return a started gRPC server on the gateway's address; several processes share its port."""
    options = [*CHANNEL, ("grpc.max_receive_message_length", settings.door_max_body_bytes)]
    server = aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((KServe(settings, queue, memory),))
    server.add_insecure_port(f"{settings.host}:{settings.grpc_port}")
    await server.start()
    return server
