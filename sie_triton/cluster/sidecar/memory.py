"""Memory of the requests at a sidecar: a message in progress, a large one that is asked for, a payload that is read.

A small message takes its bytes when it comes: there is no asking for more once the memory is spent. Large messages and
payloads take theirs before they come, in turn.
"""

import asyncio
from collections.abc import Callable
from typing import Self

import psutil

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.errors import BusyError, InputError
from sie_triton.system.host.container import container_memory


class Memory:
    """Limit of the bytes of requests. Belongs to one event loop.

    A holder is any object: it has at most one share. `max_alone` is the size of the largest payload that is read.
    `when_freed` is called when there may be room again.
    """

    def __init__(
        self,
        max_bytes: int,
        max_alone: int,
        when_freed: Callable[[], object],
        limits: SidecarLimits = SidecarLimits(),
    ) -> None:
        self._limits = limits
        self._max_bytes, self._max_alone, self._when_freed = max_bytes, max_alone, when_freed
        self._num_bytes = 0
        self._shares: dict[object, int] = {}
        self._line: dict[object, None] = {}  # holders that wait for their turn, in order
        self._num_waiting = 0
        self._freed = asyncio.Event()

    @classmethod
    def of_machine(cls, when_freed: Callable[[], object], limits: SidecarLimits = SidecarLimits()) -> Self:
        """Return the memory that requests may take of this container's, or this machine's."""
        container = container_memory()
        limit = container[1] if container else psutil.virtual_memory().total
        max_bytes = min(limits.max_requests_bytes, int(limit * limits.requests_share))
        return cls(max_bytes, min(limits.max_payload_bytes, int(limit * limits.payload_share)), when_freed, limits)

    @property
    def is_spent(self) -> bool:
        return self._num_bytes >= self._max_bytes

    @property
    def has_room(self) -> bool:
        """False while the memory is spent, or a holder waits: small messages would take all that is given back."""
        return not self.is_spent and not self._line

    def take(self, holder: object, num_bytes: int) -> None:
        """Count bytes that are there already."""
        self._num_bytes += num_bytes
        self._shares[holder] = num_bytes

    def take_in_turn(self, holder: object, num_bytes: int) -> bool:
        """Take bytes that are free, if no other holder waits before this one. False: it waits, and has to ask again."""
        if holder in self._shares:
            return True
        had_room = self.has_room
        self._line.setdefault(holder)
        # What does not fit beside others has its turn once these take at most a quarter of the limit.
        fits = self._num_bytes + num_bytes <= self._max_bytes or self._num_bytes <= self._max_bytes // 4
        if not fits or next(iter(self._line)) is not holder:
            return False
        del self._line[holder]
        self.take(holder, num_bytes)
        self._call_next(had_room)
        return True

    async def wait_for(self, holder: object, num_bytes: int) -> None:
        """Take bytes in turn. InputError if this machine never has as many, BusyError if the turn does not come.

        Release the holder afterwards in any case.
        """
        if num_bytes > self._max_alone:
            raise InputError(
                f"the request has {num_bytes} bytes, and the memory of the worker's sidecar allows {self._max_alone}; "
                "send fewer or smaller items"
            )
        if self._num_waiting >= self._limits.max_waiting_payloads:
            raise BusyError("other payloads wait for memory")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._limits.payload_wait_s):
                while not self.take_in_turn(holder, num_bytes):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise BusyError("the requests in progress take the memory") from None
        finally:
            self._num_waiting -= 1

    def release(self, holder: object) -> None:
        """Give back the bytes of a holder, or its place in line."""
        if holder in self._shares or holder in self._line:
            had_room = self.has_room
            self._num_bytes -= self._shares.pop(holder, 0)
            self._line.pop(holder, None)
            self._call_next(had_room)

    def _call_next(self, had_room: bool) -> None:
        """Have the next in line look whether its turn has come, or all if there is room that there was not before."""
        self._freed.set()
        if self._line or (self.has_room and not had_room):
            self._when_freed()
