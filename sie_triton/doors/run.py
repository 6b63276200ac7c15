"""Run one process of the door. Several processes share the port; each drains on SIGTERM."""

import asyncio
import logging
import socket
from collections.abc import Sequence

import uvicorn

from sie_triton.doors import counts
from sie_triton.doors.app import Routes, application
from sie_triton.doors.connection import Connection
from sie_triton.doors.endpoint import Door
from sie_triton.doors.triton import TritonBackend
from sie_triton.doors.websocket import WebSocket
from sie_triton.settings import Settings
from sie_triton.system.processes.freed_memory import keep_returning
from sie_triton.system.processes.pulse import beat
from sie_triton.system.telemetry import logs
from sie_triton.system.telemetry.spans import close_spans

# Maximum time that requests in progress have to finish after SIGTERM, in seconds.
DRAIN_S = 7

# Keep-alive timeout in seconds: longer than clients keep idle connections, so that the client always closes first.
KEEP_ALIVE_S = 75

# Connections that asyncio accepts in one turn of the event loop, before any of them is counted.
ACCEPTS_PER_TURN = 32

# Connections that wait to be accepted.
BACKLOG = 2048


class DoorServer(uvicorn.Server):
    """uvicorn's server, which reports that it is draining during shutdown, and sends a heartbeat each second."""

    def __init__(self, config: uvicorn.Config, door: Door) -> None:
        super().__init__(config)
        self._door = door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        keep_returning()
        for each in sockets or []:
            each.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Hook that uvicorn calls ten times a second, on the event loop."""
        if counter % 10 == 0:
            beat()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.is_draining = True
        others = [self._door.when_draining()] if self._door.when_draining is not None else []
        await asyncio.gather(super().shutdown(sockets), *others)
        close_spans()


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    counts.reserve_files()
    serve(Door(settings, TritonBackend(settings)))


def serve(door: Door, more: Sequence[Routes] = ()) -> None:
    """Answer HTTP until SIGTERM or SIGINT; `more` as for `application`."""
    # uvicorn logs a warning for each invalid request, with which any client could fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        application(door, more),
        http=Connection,
        ws=WebSocket,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=ACCEPTS_PER_TURN,
    )
    with listening(door.settings.host, door.settings.door_port) as listener:
        DoorServer(config, door).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket that shares its port: the system gives each connection to one of the processes."""
    # asyncio disables Nagle's algorithm only if a socket names its protocol. With the algorithm, the second write of a
    # response waits for an acknowledgement.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
