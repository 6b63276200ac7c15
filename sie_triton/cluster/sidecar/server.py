"""The server beside a sidecar."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.request import Request

from sie_triton.cluster.sidecar.model_files import ServerModels
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.triton import LocalTriton
from sie_triton.doors.backend import States
from sie_triton.doors.server_metrics import read_parts
from sie_triton.doors.triton import TritonBackend
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings


@dataclass
class LocalServer:
    """The parts of the server that a sidecar uses. Belongs to one event loop.

    `states` returns the states of all models. `calls` is the record in which the stages look whether a client still
    waits; `receipts` that of the work in progress. `metric_parts` returns requests for the metrics of its parts, by
    name, whose answers are in memory for one scraper at a time.
    """

    triton: LocalTriton
    states: Callable[[], Awaitable[States]]
    models: ServerModels
    calls: CallBook
    receipts: Receipts
    metric_parts: Callable[[], Mapping[str, Request]] = dict
    _scraping: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, settings: Settings) -> "LocalServer":
        backend, models, calls = TritonBackend(settings), ServerModels(settings), CallBook(settings.status_dir)
        receipts = Receipts(settings.data_dir)
        return cls(LocalTriton(settings), backend.states, models, calls, receipts, backend.metric_parts)

    async def metrics(self) -> bytes:
        """Return the metrics of Triton and the controller."""
        async with self._scraping:
            return await read_parts(self.metric_parts())

    async def close(self) -> None:
        await self.triton.close()
        await self.models.close()
