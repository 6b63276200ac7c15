"""`sie-triton controller`: serve one controller until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import resource
import signal

from starlette.types import ASGIApp

from sie_triton.controller.api import application
from sie_triton.controller.loop import Controller, lock
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.token import admin_token
from sie_triton.http.server import serving
from sie_triton.settings import CONTROL_TOKEN, Settings
from sie_triton.system.processes.limits import raise_limit
from sie_triton.system.telemetry import logs
from sie_triton.system.telemetry.spans import close_spans


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    raise_limit()
    held = lock(settings.status_dir)
    control = ModelControl(f"{settings.inner_host}:{settings.grpc_port}", os.environ.get(CONTROL_TOKEN, ""))
    token = admin_token(settings.data_dir, settings.admin_token)
    app = application(Controller(settings, control), settings, token)
    try:
        # Only `sie-triton serve` gives the token of model control; it reserves the port.
        is_reserved = CONTROL_TOKEN in os.environ
        asyncio.run(serve(app, settings.inner_host, settings.controller_port, reuse_port=is_reserved))
    finally:
        # Closing the channel fails the loads in progress; their errors are ignored.
        logging.disable()
        control.close()
        close_spans()
        held.close()


async def serve(app: ASGIApp, host: str, port: int, *, reuse_port: bool = False) -> None:
    """Serve `app` until SIGTERM or SIGINT. With `reuse_port`, other programs of this user may listen there too."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_connections = min(256, descriptors // 4)
    async with serving(app, host, port, max_connections, reuse_port=reuse_port):
        await stopped.wait()
