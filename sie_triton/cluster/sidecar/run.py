"""Run a sidecar until SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sie_triton.cluster.sidecar.metrics import REGISTRY
from sie_triton.cluster.sidecar.sidecar import Sidecar
from sie_triton.cluster.sidecar.triton import LocalTriton
from sie_triton.doors.triton import TritonBackend
from sie_triton.settings import Settings
from sie_triton.telemetry import logs


@asynccontextmanager
async def probes(sidecar: Sidecar, settings: Settings) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics."""

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n" if sidecar.is_ready else "not ready\n", status=200 if sidecar.is_ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    for handler in (healthz, readyz, metrics):
        app.router.add_get(f"/{handler.__name__}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.inner_host, settings.worker_metrics_port).start()
        yield
    finally:
        await runner.cleanup()


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    asyncio.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Run a sidecar until SIGTERM or SIGINT, and drain."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    triton = LocalTriton(settings)
    async with Sidecar(settings, triton, TritonBackend(settings).states) as sidecar, probes(sidecar, settings):
        ends = [asyncio.create_task(event.wait()) for event in (stopped, sidecar.has_lost_queue)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        await sidecar.drain()
    await triton.close()
    if sidecar.has_lost_queue.is_set():
        raise SystemExit(1)
