"""Run one process of the door. Several processes share the port; each drains on SIGTERM."""

import asyncio
import socket
from collections.abc import Sequence

from sie_triton.doors import counts
from sie_triton.doors.app import Routes, application
from sie_triton.doors.endpoint import Door
from sie_triton.doors.triton import TritonBackend
from sie_triton.doors.websocket import WebSocket
from sie_triton.http.server import HttpServer, listening
from sie_triton.settings import Settings
from sie_triton.system.processes.freed_memory import keep_returning
from sie_triton.system.processes.supervisor import beat
from sie_triton.system.telemetry import logs
from sie_triton.system.telemetry.spans import close_spans


class DoorServer(HttpServer):
    """Server that reports that it is draining during shutdown, and sends a heartbeat each second."""

    def __init__(self, door: Door, more: Sequence[Routes]) -> None:
        super().__init__(
            application(door, more), door.connections, door.limits.drain_timeout_s, WebSocket, door.limits.connection
        )
        self._door = door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        keep_returning()

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
    with listening(door.settings.host, door.settings.door_port, reuse_port=True) as listener:
        DoorServer(door, more).run(sockets=[listener])
