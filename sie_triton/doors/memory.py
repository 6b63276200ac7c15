"""Memory limit of all requests of a door together: bodies during upload, their decoded content and large answers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sie_triton.doors.failures import BUSY_S, Failure

# Age in seconds from which an upload may be ended for newer requests when memory is short.
SLOW_S = 2.0


class Held:
    """Memory that one request holds, in bytes. Belongs to the event loop of its door."""

    def __init__(self, memory: "Memory") -> None:
        self._memory = memory
        self.num_bytes = 0
        self.since = asyncio.get_running_loop().time()
        self.cut: Callable[[], None] | None = None  # ends the upload; None once the body is complete

    def take(self, num_bytes: int) -> None:
        """Reserve more; Failure 503 if the memory is not free even after ending slow uploads."""
        self._memory.make_room(num_bytes, self)
        self._memory.used += num_bytes
        self.num_bytes += num_bytes

    def release(self) -> None:
        self._memory.used -= self.num_bytes
        self.num_bytes = 0


_current: ContextVar[Held | None] = ContextVar("held", default=None)


def hold(num_bytes: int) -> None:
    """Reserve more for the request of this task until it is answered; Failure 503 if there is no memory for it."""
    if held := _current.get():
        held.take(num_bytes)


class Memory:
    """Budget of `max_bytes`, and the share of each request. Belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.used = 0
        self._max_bytes = max_bytes
        self._held: dict[Held, None] = {}  # oldest first

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Context manager with the reservation of one request, released on exit."""
        held = Held(self)
        self._held[held] = None
        before = _current.set(held)
        try:
            yield held
        finally:
            _current.reset(before)
            held.release()
            del self._held[held]

    def make_room(self, num_bytes: int, wanted_by: Held) -> None:
        """End slow uploads, oldest first, until `num_bytes` are free; Failure 503 if they are not enough."""
        now = asyncio.get_running_loop().time()
        for held in list(self._held):
            if self.used + num_bytes <= self._max_bytes:
                return
            if held is not wanted_by and held.cut is not None and now - held.since > SLOW_S:
                held.release()
                held.cut()
        if self.used + num_bytes > self._max_bytes:
            raise out_of_memory()


def out_of_memory() -> Failure:
    message = (
        "the requests in progress hold all the memory that SIE_DOOR_MAX_MEMORY_BYTES allows; retry later, or send "
        "smaller requests"
    )
    return Failure(503, "RESOURCE_EXHAUSTED", message, retry_after_s=BUSY_S, headers={"Connection": "close"})
