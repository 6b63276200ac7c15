"""Run a sidecar until SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sie_triton.cluster.payloads import keep_files_private
from sie_triton.cluster.sidecar.server import LocalServer
from sie_triton.cluster.sidecar.sidecar import Sidecar
from sie_triton.doors.server_metrics import EXPOSITION
from sie_triton.errors import ServerError
from sie_triton.http.access import Guard, WebPageGuard
from sie_triton.http.server import serving
from sie_triton.settings import Settings, read_settings
from sie_triton.system.host.private import private_directory
from sie_triton.system.telemetry import logs


@asynccontextmanager
async def probes(sidecar: Sidecar, settings: Settings) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics, which needs a token if those of the server do."""

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if sidecar.is_alive else PlainTextResponse("no heartbeat\n", 503)

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if sidecar.is_ready else PlainTextResponse("not ready\n", 503)

    async def metrics(request: Request) -> Response:
        return Response(await sidecar.metrics(), media_type=EXPOSITION)

    guard = Guard(changes="", reads=settings.auth_tokens if settings.asks_for_token else "")
    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", guard.read(metrics))]
    app = Starlette(routes=routes, middleware=[Middleware(WebPageGuard, settings, settings.host)])
    async with serving(app, settings.host, settings.worker_metrics_port, max_connections=64):
        yield


def run(settings: Settings) -> None:
    keep_files_private()
    logs.configure(settings.telemetry)
    try:
        private_directory(settings.data_dir)  # the server's, if that has not started yet
    except OSError as exc:
        raise ServerError(f"--data-dir={settings.data_dir} cannot be used: {exc}") from exc
    asyncio.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Run a sidecar until SIGTERM or SIGINT, in the pool in which it should be."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    server, pool = LocalServer.of(settings), settings.pool
    try:
        while pool:
            pool = await _serve_in(Sidecar(settings, server, pool), settings, stopped)
    finally:
        await server.close()


async def _serve_in(sidecar: Sidecar, settings: Settings, stopped: asyncio.Event) -> str:
    """Do the work of a pool; return the next pool, empty at the end. SystemExit if the queue refuses the sidecar."""
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(stack.enter_async_context(sidecar))  # waits for the queue, for ever
        await _first(starting, stopped.wait())
        if not starting.done():
            starting.cancel()
            return ""
        await starting
        await stack.enter_async_context(probes(sidecar, settings))
        await _first(stopped.wait(), sidecar.has_lost_queue.wait(), sidecar.should_move.wait())
        await sidecar.drain()
    if sidecar.has_lost_queue.is_set():
        raise SystemExit(1)
    return "" if stopped.is_set() else sidecar.best_pool


async def _first(*awaited: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Return once one of them is done; coroutines are cancelled then, tasks go on."""
    tasks = [each if isinstance(each, asyncio.Task) else asyncio.create_task(each) for each in awaited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task not in awaited:
            task.cancel()


if __name__ == "__main__":
    run(read_settings())
