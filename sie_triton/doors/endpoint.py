"""Processing of a request by one route: check the token, read the body within limits, call the handler.

ASGI → Request → handler → Response, or Failure → dialect → Response
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from sie_triton.client.failures import NotServed
from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.access import Access
from sie_triton.doors.backend import Backend, forwarded, tenant, wishes
from sie_triton.doors.body import read_body
from sie_triton.doors.body_codec import (
    JSON,
    MSGPACK,
    MULTIPART,
    answer_type,
    media_type,
    num_values,
    read,
    write_json,
    written,
)
from sie_triton.doors.body_values import VALUE_BYTES
from sie_triton.doors.counts import count
from sie_triton.doors.failures import AWAY_S, Dialect, Failure, failure_of, invalid
from sie_triton.doors.forms import form_in
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import Held, MemoryBudget
from sie_triton.doors.served import ServedModels
from sie_triton.errors import SIEError
from sie_triton.http.connection import CONNECTION, Connection, Connections, affordable
from sie_triton.records.preloads import Preloads
from sie_triton.records.request_limit import too_many
from sie_triton.settings import Settings
from sie_triton.system.telemetry.identity import MAX_ID, REQUEST_ID, TRACEPARENT, Trace
from sie_triton.system.telemetry.spans import spans

if TYPE_CHECKING:
    from sie_triton.engines.remote.forwarding import Forwarder

log = logging.getLogger(__name__)
request_log = logging.getLogger("sie_triton.doors.request_log")

Result = TypeVar("Result")

# Characters of a path in logs and traces.
MAX_URL = 200

# Header with the client's timeout of a request, in seconds, and its maximum.
TIMEOUT_HEADER = "X-Request-Timeout"
MAX_TIMEOUT_S = 3600.0

# Headers with which a request asks for a part of a cluster. One server ignores them.
WISHES = ("x-sie-pool", "x-sie-machine-profile")

# Upper bound for the copies of a body in memory at a time: as received, decoded, as tensors, and as sent to Triton.
COPIES = 4


class Door:
    """State shared by all routes of a process. Belongs to one event loop.

    `when_draining` is awaited beside the end of HTTP's requests.
    """

    def __init__(self, settings: Settings, backend: Backend, limits: DoorLimits = DoorLimits()) -> None:
        self.settings, self.limits = settings, limits
        self.backend = backend
        self.served = ServedModels(settings, self.backend, limits)
        self.preloads = Preloads(settings.status_dir, settings.preloaded)
        self.trust = Access(settings)
        self.memory = MemoryBudget(settings.door_max_memory_bytes, limits.slow_upload_s)
        self.connections = Connections(affordable(settings.door_max_connections))
        self.is_draining = False
        self.when_draining: Callable[[], Awaitable[None]] | None = None
        self.telemetry = settings.telemetry
        self.routes: Sequence[BaseRoute] = ()
        self.batch_event = asyncio.Event()  # set when a batch is created or cancelled
        self._forwarder: Forwarder | None = None

    def forwarder(self) -> "Forwarder":
        """Return the client of the endpoints of models that generate text; its limit is this process's share."""
        from sie_triton.engines.remote.forwarding import Forwarder  # here, because most doors forward nothing

        if self._forwarder is None:
            limit, num_processes = self.settings.runtime.request_limit, self.settings.door_workers
            self._forwarder = Forwarder(-(-limit // num_processes), too_many)
        return self._forwarder

    async def close(self) -> None:
        """End the connections to endpoints."""
        if self._forwarder is not None:
            await self._forwarder.close()


class DoorRequest:
    """Request for a handler. `path` holds the parameters of the route's path, `content` the decoded body of a POST.

    `receive` is for a handler that reads the body itself. `connection` is None in tests without one. `dialect` is that
    of its failures; None: that of the route.
    """

    def __init__(self, scope: Scope, door: Door) -> None:
        self.arrived_at, self.arrived_ns = monotonic(), monotonic_ns()
        self.door = door
        self.method: str = scope["method"]
        self.url: str = scope["path"]
        self.query_string = scope.get("query_string", b"").decode("latin-1")
        self.path: Mapping[str, str] = scope.get("path_params", {})
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.connection: Connection | None = scope.get(CONNECTION)
        self.content: Any = None
        self.receive: Receive | None = None
        self.dialect: Dialect | None = None
        self.kind = JSON
        self.request_id = _checked_id(self.header(REQUEST_ID) or "")
        self.trace = _trace(self)

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    @property
    def trace_id(self) -> str:
        """Id of the request in logs and in the header X-Trace-ID: the client's, or a random one."""
        return self.trace.trace_id or self.request_id

    def identity(self) -> dict[str, str]:
        """Return the id and the trace of the request for the stages, as request parameters."""
        parameters = {REQUEST_ID: self.request_id or self.trace_id}
        return {**parameters, TRACEPARENT: self.trace.traceparent} if self.trace.trace_id else parameters

    async def read(self, receive: Receive, types: Sequence[str], held: Held) -> None:
        """Read and decode the body of a POST; raise Failure if it is refused.

        A large body is measured and decoded on a thread, because msgpack is measured in Python, which would block the
        event loop.
        """
        self.kind = media_type(self.header("content-type"), types)
        limits = self.door.limits
        body = await read_body(receive, self.headers, self.door.settings.door_max_body_bytes, held, limits)
        held.take(len(body) * (COPIES - 1))
        if self.kind == MULTIPART:
            self.content = await form_in(body, self.header("content-type") or "")
            return
        if len(body) <= limits.small_body_bytes:
            held.take(num_values(body, self.kind, limits.num_values) * VALUE_BYTES)
            self.content = read(body, self.kind)
            return
        held.take(await asyncio.to_thread(num_values, body, self.kind, limits.num_values) * VALUE_BYTES)
        self.content = await asyncio.to_thread(read, body, self.kind)

    def parsed(self) -> dict[str, Any]:
        """Return the body; raise Failure 400 unless it is an object."""
        if not isinstance(self.content, dict):
            raise invalid("body", f"must be an object, not {type(self.content).__name__}")
        return self.content

    @property
    def seconds(self) -> float:
        """Timeout of the request, in seconds; Failure 400 if the client's header is invalid."""
        given = self.header(TIMEOUT_HEADER)
        if given is None:
            return self.door.settings.door_timeout_s
        with suppress(ValueError):
            seconds = float(given)
            if math.isfinite(seconds) and 0 < seconds <= MAX_TIMEOUT_S:
                return seconds
        raise invalid(TIMEOUT_HEADER, f"must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds; got {given[:40]!r}")

    def timed(self, timing: Mapping[str, float]) -> dict[str, float]:
        """Return times under SIE's names; `total_ms` is measured here, from the head of the request to the answer."""
        return {**timing, "total_ms": (monotonic() - self.arrived_at) * 1000}

    def answer(self, value: Any, headers: Mapping[str, str] | None = None) -> "Answer":
        """Return an Answer with `value`, which may contain arrays, in the media type that the client accepts."""
        kind = answer_type(self.header("accept"), self.kind) if self.method == "POST" else JSON
        return Answer(value, kind, headers or {})


class Answer(NamedTuple):
    """Response of a handler before serialization. `kind` is the media type; `value` may contain arrays."""

    value: Any
    kind: str
    headers: Mapping[str, str]

    async def response(self) -> Response:
        return Response(await written(self.value, self.kind), media_type=self.kind, headers=dict(self.headers))


Handler = Callable[[DoorRequest], Awaitable[Response | Answer]]


def detail(failure: Failure) -> Any:
    """Return the body of a failure in SIE's own dialect."""
    return {"detail": {"code": failure.row.code, "message": failure.message, **failure.more}}


SIE = Dialect(lambda row: row.sie, detail)


class DoorEndpoint:
    """ASGI application of one of Starlette's routes.

    `dialect` is that of failures. `is_open` means that no token is needed, `is_admins` that it must be
    the admin token. `types` are the accepted media types of a body; without them, it is not read. `document` makes the
    route's operation in /openapi.json from the served models. `route` is the pattern of its path, which the application
    sets.
    """

    def __init__(
        self,
        door: Door,
        handler: Handler,
        *,
        dialect: Dialect = SIE,
        is_open: bool = False,
        is_admins: bool = False,
        types: Sequence[str] = (JSON, MSGPACK),
        document: Callable[[Sequence[ModelSpec]], Mapping[str, Any]] | None = None,
    ) -> None:
        self.document = document
        self.route = ""
        self._door = door
        self._handler = handler
        self.dialect = dialect
        self._is_open, self._is_admins = is_open, is_admins
        self._types = types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = DoorRequest(scope, self._door)
        forwarded.set(request.identity())
        with self._door.memory.held() as held:
            try:
                response = await self.with_failures(request, partial(self._answered, request, receive, held))
                if response is not None:
                    held.take(len(response.body))
            except Failure as failure:
                response = failure_response(failure, request.dialect or self.dialect)
            if response is not None:
                response.headers["X-Trace-ID"] = request.trace_id
                response.headers["X-SIE-Request-ID"] = request.request_id or request.trace_id
                is_small = len(response.body) <= self._door.limits.small_body_bytes
                await response(scope, receive, send if is_small else send_all(send))
                if not self._is_open:
                    seconds = monotonic() - request.arrived_at
                    self._log(request, response.status_code, seconds * 1000)
                    self._record(request, response.status_code)
                    count(self.route, response.status_code, seconds)

    def _log(self, request: DoorRequest, status: int, latency_ms: float) -> None:
        """Write a line about a request, if each is to be logged, or slow ones."""
        wanted = self._door.telemetry
        if wanted.log_requests or 0 < wanted.log_slow_ms <= latency_ms:
            fields: dict[str, Any] = {"latency_ms": round(latency_ms, 2), "status": status}
            fields["request_id"] = request.request_id or request.trace_id
            if request.trace.trace_id:
                fields["trace_id"] = request.trace.trace_id
            request_log.info("%s %s", request.method, request.url[:MAX_URL], extra=fields)

    def _record(self, request: DoorRequest, status: int) -> None:
        """Record the door's span."""
        if (tracing := spans()) and request.trace.is_recorded:
            method, path = request.method, request.url[:MAX_URL]
            attributes: dict[str, Any] = {"http.request.method": method, "url.path": path}
            attributes |= {"http.response.status_code": status, "sie.request_id": request.identity()[REQUEST_ID]}
            error = f"status {status}" if status >= 500 else ""
            tracing.end(request.trace, f"{method} {path}", request.arrived_ns, attributes, error)

    async def _answered(self, request: DoorRequest, receive: Receive, held: Held) -> Response | None:
        """Return the response; None if the client has disconnected."""
        if self._is_admins:
            self._door.trust.check_admin(request.headers)
        elif self._is_open:
            self._door.trust.check_browser(request.headers)
        else:
            self._door.trust.check(request.headers)
            wishes.set({name: value for name in WISHES if (value := request.header(name))})
            tenant.set(self._door.trust.tenant(request.headers.get(b"authorization")))
        if request.method == "POST" and self._types:
            await request.read(receive, self._types, held)
        request.receive = receive
        return await while_connected(request.connection, partial(self.response, request))

    async def with_failures(self, request: DoorRequest, act: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `act`, each of whose errors becomes a Failure."""
        try:
            return await act()
        except NotServed as exc:
            raise failure_of(await self._door.served.with_reason(exc)) from exc
        except SIEError as exc:
            raise failure_of(exc) from exc
        except (Failure, asyncio.CancelledError):
            raise
        except Exception as exc:
            log.exception("request %s failed", request.trace_id)
            message = f"the request failed with {type(exc).__name__}; the door's log has the details"
            raise Failure("fault", message) from exc

    async def response(self, request: DoorRequest) -> Response:
        """Return the handler's response to a request that has been read."""
        answer = await self._handler(request)
        return await answer.response() if isinstance(answer, Answer) else answer


def route(method: str, path: str, endpoint: DoorEndpoint, name: str = "") -> Route:
    """Return a route; /openapi.json names its operation `name`, by default the path."""
    return Route(path, endpoint, methods=[method], name=name or path.strip("/"))


get, post, delete = partial(route, "GET"), partial(route, "POST"), partial(route, "DELETE")


async def while_connected(connection: Connection | None, act: Callable[[], Awaitable[Result]]) -> Result | None:
    """Return the result of `act`; None if the client disconnects, which cancels it. Failure if the server ends."""
    task = asyncio.current_task()
    assert task is not None
    if connection is not None:
        if connection.has_gone:
            return None
        connection.watch(task.cancel)
    try:
        return await act()
    except asyncio.CancelledError:
        task.uncancel()
        if connection is None or not connection.has_gone:
            raise Failure(
                "unreachable", "the server shut down before it responded; retry", retry_after_s=AWAY_S
            ) from None
        return None
    finally:
        if connection is not None:
            connection.watch(None)


def failure_response(failure: Failure, dialect: Dialect = SIE) -> Response:
    status, headers = dialect.status(failure.row), {"X-SIE-Error-Code": failure.row.code, **failure.headers}
    if failure.retry_after_s is not None:
        headers["Retry-After"] = str(failure.retry_after_s)
    elif status >= 500:
        headers |= dialect.final
    return Response(write_json(dialect.body(failure)), status, headers, JSON)


def send_all(send: Send) -> Send:
    """Return a `send` that continues once the client has read nearly all of the body."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b""}  # uvicorn waits here until the client has read
        await send(message)

    return sent


def _trace(request: DoorRequest) -> Trace:
    """Return the trace of a request, of which the door's span is a part; without tracing, the client's, if any."""
    traceparent, tracing = request.header(TRACEPARENT) or "", spans()
    if tracing:
        return tracing.begin(traceparent)
    trace = Trace.unrecorded(traceparent)
    return trace if trace.trace_id or request.request_id else Trace(token_hex(16))


def _checked_id(text: str) -> str:
    """Return the id if it is short and printable, else an empty text."""
    return text if text.isascii() and text.isprintable() and len(text) <= MAX_ID else ""
