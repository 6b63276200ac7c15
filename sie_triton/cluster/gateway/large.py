"""Requests that are larger than a message of the queue: they go through the payload store."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from sie_triton.cluster.payloads import Payloads
from sie_triton.errors import BusyError, InputError
from sie_triton.models.weights.object_store import StoreError

log = logging.getLogger(__name__)


class LargeRequests:
    """Belongs to one event loop. `url` is that of the store; empty: there is none, and large requests are refused.

    `gateway` is the name of this gateway, and `now` its clock, in seconds of the Unix epoch.
    """

    def __init__(self, url: str, gateway: str, now: Callable[[], float]) -> None:
        self._payloads = Payloads(url) if url else None
        self._gateway, self._now = gateway, now

    async def stored(self, number: int, deadline: float, request: bytes, max_message: int) -> str:
        """Store a request that no message of `max_message` bytes can hold; return its path, empty for a smaller one.

        Raise BusyError if the store does not take it, and InputError if there is none.
        """
        room = max_message - 4096  # subjects and headers around it
        if len(request) <= room:
            return ""
        if self._payloads is None:
            raise InputError(
                f"the request has {len(request)} bytes, and the queue takes {room}; send fewer or smaller items, or "
                "give the cluster a payload store (SIE_PAYLOAD_STORE_URL)"
            )
        try:
            return await self._payloads.put(self._gateway, number, deadline, request)
        except StoreError as exc:
            log.warning("payload store: %s", exc)
            raise BusyError("the payload store does not take the request; retry, or send smaller ones") from exc

    async def remove(self, path: str) -> None:
        assert self._payloads is not None
        with suppress(StoreError):  # a gateway removes it later
            await self._payloads.remove(path)

    async def sweep(self) -> None:
        """Remove requests that gateways have left behind, for ever."""
        while self._payloads is not None:
            try:
                if num_removed := await self._payloads.sweep(self._now()):
                    log.info("payload store: removed %d payloads whose time had passed", num_removed)
            except StoreError as exc:
                log.warning("payload store: %s", exc)
            await asyncio.sleep(60.0)
