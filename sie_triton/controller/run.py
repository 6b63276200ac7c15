"""`sie-triton controller`: serve one controller until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import signal
import socket

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from sie_triton.controller.api import application
from sie_triton.controller.connections import BACKLOG, ControllerConnections
from sie_triton.controller.loop import Controller, lock
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.token import admin_token
from sie_triton.settings import CONTROL_TOKEN, Settings
from sie_triton.system.processes.descriptors import raise_limit
from sie_triton.system.telemetry import logs
from sie_triton.system.telemetry.spans import close_spans

# Idle timeout of a connection without a complete request, in seconds.
KEEP_ALIVE_S = 30.0

# Timeout for the rest of a body that no handler has read, in seconds.
REST_S = 2.0

# Grace period of requests in progress when the controller stops, in seconds.
DRAIN_S = 1.0


def is_not_the_clients_fault(record: logging.LogRecord) -> bool:
    """False for malformed HTTP, which gets a 400: tracebacks would let any client fill the disk."""
    return not (record.exc_info and isinstance(record.exc_info[1], BadHttpMessage))


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    logging.getLogger("aiohttp.server").addFilter(is_not_the_clients_fault)
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


async def serve(app: web.Application, host: str, port: int, *, reuse_port: bool = False) -> None:
    """Serve `app` until SIGTERM or SIGINT. With `reuse_port`, other programs of this user may listen there too."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    connections = ControllerConnections()
    app.middlewares.append(connections.watch)
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=KEEP_ALIVE_S, lingering_time=REST_S, shutdown_timeout=DRAIN_S
    )
    await runner.setup()
    try:
        assert runner.server is not None
        with socket.create_server((host, port), backlog=BACKLOG, reuse_port=reuse_port) as listener:
            listener.setblocking(False)
            connections.accept(listener, runner.server)
            await stopped.wait()
            connections.refuse(listener)
    finally:
        await runner.cleanup()
