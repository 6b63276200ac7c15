"""Triton's gRPC at the gateway (KServe v2): a client of one Triton works against many, without a change.

The request's bytes go through the queue to a worker's Triton, and its response's bytes come back, unchanged. Of a
request for inference the gateway reads the model's name and the parameters.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from time import monotonic
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from tritonclient.grpc import service_pb2

from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.gateway.port import Receiving
from sie_triton.cluster.gateway.questions import check_size
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import OK, Answer, unknown_model, with_parameters
from sie_triton.contract.error_prefix import with_prefix
from sie_triton.doors.access import Access
from sie_triton.doors.backend import QUESTION_S
from sie_triton.doors.counts import count
from sie_triton.doors.failures import Failure
from sie_triton.doors.memory import MemoryBudget
from sie_triton.errors import BusyError, InputError, SIEError
from sie_triton.settings import Settings
from sie_triton.system.telemetry.identity import REQUEST_ID, TRACEPARENT

SERVICE = "inference.GRPCInferenceService"

# Other methods of Triton's service, and why the gateway has none.
REFUSED = {
    "ModelStreamInfer": "the gateway has no streams: every request has one answer; call ModelInfer",
    "RepositoryIndex": "the gateway has no model repository; GET /v1/models lists the models",
}

STATUSES = {code.value[0]: code for code in grpc.StatusCode}

# HTTP's status for each of gRPC, so that calls are counted as requests to the door are; 500 for others.
OF_HTTP = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}

# Metadata of a call that the stages receive as request parameters.
FORWARDED = (TRACEPARENT, REQUEST_ID)

# Numbers of the fields that the gateway reads.
REQUEST = service_pb2.ModelInferRequest
READ = frozenset({REQUEST.MODEL_NAME_FIELD_NUMBER, REQUEST.PARAMETERS_FIELD_NUMBER})

Context = Any  # grpc.aio.ServicerContext
Handler = Callable[[bytes, Context], Awaitable[bytes]]
Behavior = Callable[[Any, Context], Awaitable[bytes]]


class KServe(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of Triton's service. They read and write bytes. Belongs to the event loop of its queue.

    For gRPC they are handlers of streams, which it calls before it has received a message.
    """

    def __init__(
        self,
        settings: Settings,
        queue: Queue,
        memory: MemoryBudget,
        receiving: Receiving,
        limits: GatewayLimits = GatewayLimits(),
    ) -> None:
        self._queue, self._memory, self._receiving, self._limits = queue, memory, receiving, limits
        self._trust = Access(settings)
        self._handlers: dict[str, Handler] = {
            "ModelInfer": self._infer,
            "ModelReady": self._model_ready,
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelStatistics": self._statistics,
            **{method: self._asking(method) for method in ("ServerMetadata", "ModelMetadata", "ModelConfig")},
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, method = details.method.lstrip("/").partition("/")
        handler = self._handlers.get(method) if service == SERVICE else None
        try:
            self._trust.check_token(_metadata(details.invocation_metadata).get("authorization", "").encode())
        except Failure as exc:
            behavior = _refusal(grpc.StatusCode.UNAUTHENTICATED, exc.message)
        else:
            if service != SERVICE:
                return None
            why = REFUSED.get(method, "the gateway has no such method: it serves models, and controls none")
            text = f"{method[:80]}: {why}"
            behavior = self._received(handler) if handler else _refusal(grpc.StatusCode.UNIMPLEMENTED, text)
        if handler and method not in ("ServerLive", "ServerReady"):  # probes are not counted, as at the door
            behavior = _counted(f"/{SERVICE}/{method}", behavior)
        return grpc.stream_unary_rpc_method_handler(behavior)

    def _received(self, handler: Handler) -> Behavior:
        """Return the handler with the reception of its request, and our errors as Triton's statuses."""

        async def handle(_: Any, context: Context) -> bytes:
            held = self._memory.held().enter()
            context.add_done_callback(lambda _: held.leave())  # once the client has taken the answer
            try:
                held.take(self._limits.call_bytes)
                request = await self._receiving.message(context)
                held.take(2 * len(request))  # as received, and with the parameters of its call
                return await handler(request, context)
            except Failure as exc:  # the requests of all clients together take too much memory
                await context.abort(grpc.StatusCode.UNAVAILABLE, with_prefix(BusyError(exc.message)))
                raise AssertionError("abort raises") from exc
            except SIEError as exc:
                code = "INVALID_ARGUMENT" if exc.code == "INVALID_ARG" else exc.code
                await context.abort(getattr(grpc.StatusCode, code), with_prefix(exc))
                raise AssertionError("abort raises") from exc

        return handle

    def _pool(self, context: Context) -> str:
        return self._queue.pools.chosen(_metadata(context.invocation_metadata()))

    async def _infer(self, request: bytes, context: Context) -> bytes:
        arrived = monotonic()
        name, left_s = _head(request, context, self._limits.max_fields)
        metadata = _metadata(context.invocation_metadata())
        pool = self._queue.pools.chosen(metadata)
        if not (model := await self._queue.questions.model_of(pool, name)):
            await context.abort(grpc.StatusCode.NOT_FOUND, unknown_model(name[:200]))
        given = {name: metadata[name] for name in FORWARDED if name in metadata}
        left_s -= monotonic() - arrived
        sent = with_parameters(request, given) if given else request
        tenant = self._trust.tenant(metadata.get("authorization", "").encode())
        answer, body = await self._queue.submit(pool, model, sent, max(0.001, left_s), tenant)
        return await _answered(answer, body, context)

    def _asking(self, method: str) -> Handler:
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
        check_size("ModelReady", request)
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
        raise _not_a(kind) from exc


def _not_a(kind: Any) -> InputError:
    return InputError(f"the request is not a {kind.DESCRIPTOR.name} of Protocol Buffers")


def _head(request: bytes, context: Context, max_fields: int) -> tuple[str, float]:
    """Return the model's name of a ModelInferRequest, and the time that it has, in seconds."""
    try:
        read = b"".join([request[start:end] for number, start, end in fields(request, max_fields) if number in READ])
    except DecodeError as exc:
        raise _not_a(REQUEST) from exc
    message = _parsed(REQUEST, read)
    return message.model_name, _left_s(context, message)


def _metadata(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Return the metadata of a call that are texts."""
    return {name: value for name, value in pairs or () if isinstance(value, str)}


async def _answered(answer: Answer, body: bytes, context: Context) -> bytes:
    if answer.status != OK:
        await context.abort(STATUSES.get(answer.status, grpc.StatusCode.INTERNAL), answer.text)
    return body


def _left_s(context: Context, message: Any) -> float:
    """Return the time that a request has, in seconds: the timeout of its call, or its parameter `timeout`."""
    given = message.parameters["timeout"].int64_param / 1e6 if "timeout" in message.parameters else NETWORK_TIMEOUT_S
    of_call = context.time_remaining()
    return min(given or NETWORK_TIMEOUT_S, NETWORK_TIMEOUT_S if of_call is None else of_call)


def _refusal(status: grpc.StatusCode, text: str) -> Behavior:
    """Return a behavior that refuses a call without reading anything of it."""

    async def refuse(_: Any, context: Context) -> bytes:
        await context.abort(status, text)
        raise AssertionError("abort raises")

    return refuse


def _counted(route: str, behavior: Behavior) -> Behavior:
    """Return a behavior whose calls are counted with the requests to the door."""

    async def behave(requests: Any, context: Context) -> bytes:
        began, status = monotonic(), grpc.StatusCode.UNKNOWN
        try:
            answer = await behavior(requests, context)
            status = grpc.StatusCode.OK
            return answer
        except aio.AbortError:
            status = context.code()
            raise
        except asyncio.CancelledError:
            status = grpc.StatusCode.CANCELLED
            raise
        finally:
            count(route, OF_HTTP.get(status, 500), monotonic() - began)

    return behave


# Fields that tell what a message of statistics is about.
KEYS = ("name", "version", "batch_size")


def summed(responses: Iterable[bytes]) -> bytes:
    """Return one ModelStatisticsResponse for those of several workers, serialized."""
    total = service_pb2.ModelStatisticsResponse()
    for each in responses:
        _add_all(total.model_stats, service_pb2.ModelStatisticsResponse.FromString(each).model_stats)
    return _bytes(total)


def _add_all(to: Any, messages: Iterable[Any]) -> None:
    """Add messages to those of the same name, version or batch size."""
    present = {_key(each): each for each in to}
    for message in messages:
        if (found := present.get(_key(message))) is None:
            to.add().CopyFrom(message)
        else:
            _add(found, message)


def _add(to: Any, message: Any) -> None:
    for field, value in message.ListFields():
        if field.name in KEYS:
            continue
        if field.message_type is None and not isinstance(value, int):
            continue
        present = getattr(to, field.name)
        if isinstance(value, int):
            setattr(to, field.name, max(present, value) if field.name == "last_inference" else present + value)
        elif hasattr(value, "ListFields"):
            _add(present, value)
        elif hasattr(value, "add"):
            _add_all(present, value)


def _key(message: Any) -> tuple[Any, ...]:
    return tuple(getattr(message, name, None) for name in KEYS)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


# Maximum length of a number, in bytes, and bound of a tag: a field's number and its kind.
MAX_VARINT_BYTES, TAGS = 10, 2**32

# Kinds of fields: a number, eight bytes, a length with so many bytes, four bytes. Triton's messages have no groups.
VARINT, FIXED_64, SIZED, FIXED_32 = 0, 1, 2, 5


def fields(message: bytes, max_fields: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a serialized message, but not of the messages in it.

    An empty field takes two bytes, and its object about fifty, so fields are counted before a message is parsed.

    Raise DecodeError at bytes that are no field, and InputError beyond `max_fields`.

    >>> [*fields(bytes([0x0A, 1, 65, 0x2A, 0]), 2)]
    [(1, 0, 3), (5, 3, 5)]
    """
    at, num_fields = 0, 0
    while at < len(message):
        num_fields += 1
        if num_fields > max_fields:
            raise InputError(f"the request has more than {max_fields} fields")
        start = at
        tag, at = _varint(message, at)
        at = _end(message, tag & 7, at)
        if at > len(message) or not 8 <= tag < TAGS:
            raise DecodeError(f"no field at byte {start}")
        yield tag >> 3, start, at


def _end(message: bytes, kind: int, at: int) -> int:
    """Return the end of a field of this kind whose content begins at `at`."""
    if kind == SIZED:
        size, at = _varint(message, at)
        return at + size
    if kind == VARINT:
        return _varint(message, at)[1]
    if kind in (FIXED_64, FIXED_32):
        return at + (8 if kind == FIXED_64 else 4)
    raise DecodeError(f"a field of kind {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and its end."""
    value = 0
    for place, byte in enumerate(message[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise DecodeError(f"no number at byte {at}")
