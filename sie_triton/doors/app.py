"""ASGI application of a door: one table with the routes of all dialects. Each dialect has its own module."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sie_triton.client.door import GRPC_PORT
from sie_triton.doors import (
    chat,
    embed,
    health,
    models,
    openai,
    openapi,
    rerank,
    sie,
    speech,
    status_page,
    tei,
    vllm,
)
from sie_triton.doors.batches import files
from sie_triton.doors.batches import routes as batches
from sie_triton.doors.batches.runner import BatchRunner
from sie_triton.doors.endpoint import MAX_URL, Door, DoorEndpoint, failure_response
from sie_triton.doors.failures import Failure
from sie_triton.settings import words

METHODS = ("GET", "POST", "DELETE")

# Release of SIE's own server whose protocol the door speaks. SIE's SDKs compare it with their own version, and warn of
# every server with another minor version.
PROTOCOL_VERSION = "0.10.1"

# Function that returns the routes of one dialect.
Routes = Callable[[Door], Sequence[BaseRoute]]

DIALECTS: Sequence[Routes] = (
    sie.routes,
    models.routes,
    openai.routes,
    chat.routes,
    speech.routes,
    rerank.routes,
    embed.routes,
    tei.routes,
    vllm.routes,
    files.routes,
    batches.routes,
    health.routes,
    status_page.routes,
    openapi.routes,
)


def application(door: Door, more: Sequence[Routes] = ()) -> ASGIApp:
    """Return the application of a door; `more` are routes in addition to those of the dialects."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with door.backend:
            runner = asyncio.create_task(BatchRunner(door).run()) if door.backend.is_beside_server else None
            yield
            if runner is not None:
                runner.cancel()
                with suppress(asyncio.CancelledError):
                    await runner
        await door.close()

    door.routes = [route for dialect in (*DIALECTS, *more) for route in dialect(door)]
    for route in door.routes:
        if isinstance(route, Route) and isinstance(route.endpoint, DoorEndpoint):
            route.endpoint.route = route.path
    router = Router(door.routes, redirect_slashes=False, default=partial(_no_route, door), lifespan=lifespan)
    app = answering(router, door.backend.grpc_port)
    if origins := words(door.settings.door_cors_origins):
        return CORSMiddleware(app, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"])
    return app


async def _no_route(door: Door, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    likely = likely_path(door.routes, scope)
    remedy = f"did you mean {likely}?" if likely else "/docs lists all routes"
    message = f"{scope['path'][:MAX_URL]}: there is no such route; {remedy}"
    await failure_response(Failure("no_route", message))(scope, receive, send)


def likely_path(routes: Sequence[BaseRoute], scope: Scope) -> str:
    """Return the path of a route that the client may have meant: with /v1, without it, or without a path before it."""
    path = scope["path"]
    for meant in (f"/v1{path}", path[max(0, path.find("/v1/", 1)) :], path.removeprefix("/v1")):
        if any(route.matches({**scope, "path": meant})[0] is Match.FULL for route in routes):
            return str(meant[:MAX_URL])
    return ""


def methods_of(router: Router, scope: Scope) -> set[str]:
    """Return the methods of all routes of a path; Starlette knows those of the first."""
    routes = [
        route for route in router.routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
    ]
    return {method for route in routes for method in route.methods or ()}


def answering(app: Router, grpc_port: int = 0) -> ASGIApp:
    """Return middleware that adds headers to each response, and gives 405 the shape of other failures.

    The headers are versions, and Triton's gRPC port if clients can reach it.
    """
    headers = [
        (b"x-sie-server-version", PROTOCOL_VERSION.encode()),
        (b"x-sie-triton-version", version("sie-triton").encode()),
        *([(GRPC_PORT.lower().encode(), str(grpc_port).encode())] if grpc_port else []),
    ]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        scope["app"] = app  # makes Starlette raise HTTPException instead of sending its own response
        try:
            await app(scope, receive, send_with)
        except HTTPException as exc:
            message = f"{scope['method']} {scope['path'][:200]}: {exc.detail}"
            failure = Failure("method", message, headers={"Allow": ", ".join(sorted(methods_of(app, scope)))})
            await failure_response(failure)(scope, receive, send_with)

    return answer
