"""The payload store: requests that are larger than the queue's messages.

payloads/DEADLINE/GATEWAY.NUMBER     removed after the answer, and by any gateway once the deadline has passed
dead/GATEWAY.NUMBER                  of a request that was put aside
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.models.weights.object_store import AsyncObjectStore, StoreError

PATH = re.compile(r"payloads/(\d{1,12})/[\w.-]{1,200}", re.ASCII)


def keep_files_private() -> None:
    """Have all files that this process makes belong to its user alone: a payload store may be a directory."""
    os.umask(0o077)


class Payloads:
    """The payload store at a URL. Its methods raise StoreError. Belongs to one event loop.

    Few payloads are read at a time. While the store does not answer, requests would fill a sidecar's places, so they
    wait a little for their turn to read, and then go back to the queue.
    """

    def __init__(self, url: str, limits: SidecarLimits = SidecarLimits()) -> None:
        self._url, self._limits = url, limits
        self._turns = asyncio.Semaphore(limits.max_reads)
        self._is_stalled = False

    async def put(self, gateway: str, number: int, deadline: float, body: bytes) -> str:
        """Store a request; return its path."""
        path = f"payloads/{int(deadline)}/{gateway}.{number}"
        await self._store.write(path, body)
        return path

    async def size(self, path: str) -> int | None:
        """Return the size of a stored request in bytes; None if it has been removed."""
        async with self._turn():
            return await self._store.size(path)

    async def get(self, path: str, max_bytes: int) -> bytes | None:
        """Return a stored request; None if it has been removed."""
        async with self._turn():
            return await self._store.read(path, max_bytes)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._is_stalled and self._turns.locked():
            raise StoreError("earlier reads have not ended")
        try:
            async with asyncio.timeout(self._limits.read_turn_s):
                await self._turns.acquire()
        except TimeoutError:
            self._is_stalled = True
            raise StoreError("earlier reads have not ended") from None
        try:
            yield
        finally:
            self._is_stalled = False
            self._turns.release()

    async def remove(self, path: str) -> None:
        await self._store.remove(path)

    async def keep(self, gateway: str, number: int, body: bytes) -> str:
        """Store a request that was put aside, for people; return its path."""
        path = f"dead/{gateway}.{number}"
        await self._store.write(path, body)
        return path

    async def sweep(self, now: float) -> int:
        """Remove what gateways that ended have left; return the number of payloads. `now`: by a gateway's clock."""
        before = now - 60
        found = [match async for path in self._store.paths("payloads") if (match := PATH.fullmatch(path))]
        late = [match[0] for match in found if int(match[1]) < before][:10_000]
        for path in late:
            await self._store.remove(path)
        return len(late)

    @cached_property
    def _store(self) -> AsyncObjectStore:
        return AsyncObjectStore(self._url)
