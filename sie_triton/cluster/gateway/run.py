"""Run one process of the gateway: HTTP on the door's port, and Triton's gRPC on its own."""

from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.kserve import listening
from sie_triton.cluster.gateway.pool_routes import PoolRoutes
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.doors import counts
from sie_triton.doors.endpoint import Door
from sie_triton.doors.memory import MemoryBudget
from sie_triton.doors.run import DRAIN_S, serve
from sie_triton.settings import Settings
from sie_triton.telemetry import logs


class GatewayBackend(QueueBackend):
    """The backend with its queue and the gRPC server, which live as long as the application.

    `memory` is that of the door: requests by HTTP and by gRPC share it.
    """

    memory: MemoryBudget

    async def __aenter__(self) -> "GatewayBackend":
        await self._queue.__aenter__()
        self._grpc = await listening(self._settings, self._queue, self.memory)
        return self

    async def drain(self) -> None:
        """Take no call of gRPC any more, and return once those in progress are answered."""
        await self._grpc.stop(DRAIN_S)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._queue.__aexit__()


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    counts.reserve_files()
    queue = Queue(settings)
    backend = GatewayBackend(settings, queue)
    door = Door(settings, backend)
    backend.memory, door.when_draining = door.memory, backend.drain
    serve(door, [PoolRoutes(queue, settings.pool).all])
