"""Routes of OpenAI's HTTP API for models that generate text: the endpoint of the model file answers them.

client → token, limits → endpoint → client, a piece at a time
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors import openai
from sie_triton.doors.body_codec import JSON, write_json, written
from sie_triton.doors.endpoint import (
    MAX_TIMEOUT_S,
    TIMEOUT_HEADER,
    Door,
    DoorEndpoint,
    DoorRequest,
    post,
    while_connected,
)
from sie_triton.doors.failures import Failure, failure_of
from sie_triton.doors.fields import LONGEST_MODEL, checked_model, shown_json
from sie_triton.doors.memory import hold
from sie_triton.doors.openapi import TIMEOUT, posted
from sie_triton.doors.schemas import STRING, fields, record
from sie_triton.errors import InputError, ModelError, SIEError
from sie_triton.http.connection import CONNECTION

if TYPE_CHECKING:
    from sie_triton.engines.remote.forwarding import EndpointAnswer

log = logging.getLogger(__name__)

PATHS: Mapping[str, str] = {
    "/v1/chat/completions": "A reply to messages, in OpenAI's format, by the model's endpoint.",
    "/v1/completions": "The continuation of a text, in OpenAI's format, by the model's endpoint.",
    "/v1/responses": "A response to an input, in OpenAI's format, by the model's endpoint.",
}

# Media type of a stream in documents.
EVENTS = "text/event-stream"

# Statuses by which an endpoint refuses this server, and not its client: the key is wrong, or the address.
NOT_THE_CLIENTS = (401, 403, *range(300, 400))


def routes(door: Door) -> list[Route]:
    def forwarding(summary: str) -> DoorEndpoint:
        return DoorEndpoint(door, forward, dialect=openai.OPENAI, types=[JSON], document=partial(document, summary))

    return [post(path, forwarding(summary)) for path, summary in PATHS.items()]


def document(summary: str, specs: Sequence[ModelSpec]) -> Mapping[str, Any]:
    names = [spec.model for spec in specs if spec.is_forwarded]
    model = STRING | {"maxLength": LONGEST_MODEL} | ({"enum": names} if names else {})
    body = fields({"model": model}, "model") | {"description": "all other fields are the endpoint's"}
    options: dict[str, Any] = {"parameters": [TIMEOUT], "written": [JSON, EVENTS], "error": openai.FAILURE}
    return posted(summary, body, None, record(), **options)


async def forward(request: DoorRequest) -> Response:
    """Send the body to the same path of the model's endpoint, and return the answer."""
    door, content = request.door, request.parsed()
    if not door.backend.is_beside_server:
        raise Failure("no_route", f"{request.url}: a gateway forwards no requests; call the door of a server")
    spec = await door.served.spec(_model_in(content))
    if spec.endpoint is None or not spec.is_forwarded:
        raise InputError.at("model", f"{spec.model} does not generate text; its tasks: {', '.join(spec.tasks)}")
    body = await written({**content, "model": spec.endpoint.model}, JSON)
    request.content = None
    return await _answered(await _asked(request, spec, body))


async def _asked(request: DoorRequest, spec: ModelSpec, body: bytes) -> "EndpointAnswer":
    from sie_triton.engines.remote.forwarding import Patience  # here, because most doors forward nothing

    is_limited = request.header(TIMEOUT_HEADER) is not None
    in_all_s = request.seconds if is_limited else MAX_TIMEOUT_S
    patience = Patience(request.seconds, asyncio.get_running_loop().time() + in_all_s)
    return await request.door.forwarder().post(spec, request.url, body, request.identity(), patience)


def _model_in(content: Mapping[str, Any]) -> str:
    model = content.get("model")
    if not isinstance(model, str):
        raise InputError.at("model", f"must be the name of a model; got {shown_json(model)}")
    return checked_model(model)


async def _answered(answer: "EndpointAnswer") -> Response:
    if answer.is_stream:
        return Streamed(answer)
    try:
        body = await answer.body(hold)
    finally:
        answer.close()
    return response(answer.where, answer.status, answer.headers, answer.media_type, body)


def response(where: str, status: int, headers: Mapping[str, str], media_type: str, body: bytes) -> Response:
    """Return an endpoint's answer for the client: with its status and body, an error in OpenAI's form.

    LoadError if it refuses this server's key or redirects, ModelError for an answer that is compressed or no JSON.
    """
    from sie_triton.engines.remote.refusals import error_message, failure, retry_s

    retry_after = headers.get("Retry-After", "")
    if headers.get("Content-Encoding", "identity") != "identity":
        raise ModelError(f"{where}: the response is compressed, which this server does not accept")
    if status in NOT_THE_CLIENTS:
        raise failure(where, status, retry_after, body)
    if status >= 400:
        told = f"{where}: answers {status}" + (f", {message}" if (message := error_message(body)) else "")
        body = body if is_error(body) else write_json(openai.error_body(status, told))
    elif media_type != JSON:
        raise ModelError(f"{where}: answers {media_type[:80]}, not {JSON}; check endpoint.url in the model file")
    return Response(body, status, {"Retry-After": str(retry_s(retry_after))} if retry_after else None, JSON)


def is_error(body: bytes) -> bool:
    """Return True if the body of an error has OpenAI's form.

    >>> is_error(b'{"error": {"message": "too long"}}'), is_error(b'{"error": "x"}'), is_error(b"<html>")
    (True, False, False)
    """
    try:
        found = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("error"), dict)


class Streamed(Response):
    """Response that passes a stream of events on as they arrive; if the stream breaks, its last event is an error.

    A client that disconnects ends the request at the endpoint.
    """

    def __init__(self, answer: "EndpointAnswer") -> None:
        super().__init__(media_type=None, headers={"Content-Type": EVENTS, "Cache-Control": "no-cache"})
        del self.headers["Content-Length"]
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await while_connected(scope.get(CONNECTION), partial(self._pass_on, send))
        except (SIEError, Failure) as exc:
            await self._end_with(exc if isinstance(exc, Failure) else failure_of(exc), send)
        finally:
            self._answer.close()
        await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, send: Send) -> None:
        async for events in self._answer.events():
            await send({"type": "http.response.body", "body": events, "more_body": True})

    async def _end_with(self, failure: Failure, send: Send) -> None:
        """Send the failure as an event; logs and metrics have its status."""
        self.status_code = openai.OPENAI.status(failure.row)
        log.warning("%s: a stream broke: %s", self._answer.where, failure.message)
        event = b"\n\ndata: " + write_json(openai.error(failure)) + b"\n\n"  # a large event may be incomplete
        await send({"type": "http.response.body", "body": event, "more_body": True})
