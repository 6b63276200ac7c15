"""The server beside a sidecar."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sie_triton.cluster.sidecar.model_files import ServerModels
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.triton import LocalTriton
from sie_triton.doors.backend import States
from sie_triton.doors.triton import TritonBackend
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings


@dataclass
class LocalServer:
    """The parts of the server that a sidecar uses. Belongs to one event loop.

    `states` returns the states of all models. `calls` is the record in which the stages look whether a client still
    waits; `receipts` that of the work in progress.
    """

    triton: LocalTriton
    states: Callable[[], Awaitable[States]]
    models: ServerModels
    calls: CallBook
    receipts: Receipts

    @classmethod
    def of(cls, settings: Settings) -> "LocalServer":
        models, calls = ServerModels(settings), CallBook(settings.status_dir)
        return cls(LocalTriton(settings), TritonBackend(settings).states, models, calls, Receipts(settings.data_dir))

    async def close(self) -> None:
        await self.triton.close()
        await self.models.close()
