"""Run one process of the gateway: HTTP on the door's port, and Triton's gRPC on its own."""

import os

from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.kserve import KServe
from sie_triton.cluster.gateway.pool_routes import PoolRoutes
from sie_triton.cluster.gateway.port import SHARES, Port, Receiving
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.payloads import keep_files_private
from sie_triton.doors import counts
from sie_triton.doors.endpoint import Door
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import MemoryBudget
from sie_triton.doors.run import serve
from sie_triton.http.connection import affordable
from sie_triton.settings import Settings, read_settings
from sie_triton.system.telemetry import logs

# Name of the gateway in traces; the parts of a server have that of `tracing.DEFAULTS`.
SERVICE = "sie-gateway"


class GatewayBackend(QueueBackend):
    """The backend with its queue and the gRPC server, which live as long as the application.

    `memory` is that of the door: requests by HTTP and by gRPC share it.
    """

    memory: MemoryBudget

    async def __aenter__(self) -> "GatewayBackend":
        await self._queue.__aenter__()
        limits = self._queue.limits
        receiving = Receiving(self._settings.door_max_memory_bytes, limits=limits)
        handlers = KServe(self._settings, self._queue, self.memory, receiving, limits)
        self._grpc = Port(self._settings, handlers, receiving, limits)
        await self._grpc.start()
        return self

    async def drain(self) -> None:
        """Take no call of gRPC any more, and return once those in progress are answered."""
        await self._grpc.stop(DoorLimits.drain_timeout_s)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._queue.__aexit__()


def run(settings: Settings) -> None:
    keep_files_private()
    os.environ.setdefault("OTEL_SERVICE_NAME", SERVICE)
    logs.configure(settings.telemetry)
    counts.reserve_files()
    most = affordable(settings.door_max_connections, SHARES)
    settings = settings.model_copy(update={"door_max_connections": most})
    queue = Queue(settings)
    backend = GatewayBackend(settings, queue)
    door = Door(settings, backend)
    backend.memory, door.when_draining = door.memory, backend.drain
    serve(door, [PoolRoutes(queue, settings).all])


if __name__ == "__main__":
    run(read_settings())
