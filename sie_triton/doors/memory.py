"""Memory limit of all requests of a door together: bodies during upload, their decoded content and responses."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sie_triton.doors.failures import BUSY_S, Failure
from sie_triton.doors.limits import DoorLimits


class Held:
    """Memory that one request holds, in bytes: a context manager. Belongs to the event loop of its door."""

    __slots__ = ("_before", "_memory", "end_upload", "is_cut", "num_bytes", "since")

    def __init__(self, memory: "MemoryBudget") -> None:
        self._memory = memory
        self.num_bytes = 0
        self.since = asyncio.get_running_loop().time()
        self.end_upload: Callable[[], None] | None = None  # None once the body is complete
        self.is_cut = False

    def __enter__(self) -> "Held":
        return self.enter()

    def __exit__(self, *_: object) -> None:
        _take.reset(self._before)
        self.leave()

    def enter(self) -> "Held":
        """Begin the reservation, for the rest of this task."""
        self._memory.requests[self] = None
        self._before = _take.set(self.take)
        return self

    def leave(self) -> None:
        """End the reservation, from any task. A task of the request that is still running can reserve no more."""
        self.is_cut = True
        self.release()
        del self._memory.requests[self]

    def take(self, num_bytes: int) -> None:
        """Reserve more memory; Failure 503 if ending slow uploads does not free enough, or if this upload was ended."""
        if self.is_cut:
            raise out_of_memory()
        self._memory.make_room(num_bytes, self)
        self._memory.used += num_bytes
        self.num_bytes += num_bytes

    def cut(self) -> None:
        """End the upload and release its memory."""
        assert self.end_upload is not None
        self.is_cut = True
        self.release()
        self.end_upload()

    def release(self) -> None:
        self._memory.used -= self.num_bytes
        self.num_bytes = 0


Take = Callable[[int], object]

_take: ContextVar[Take | None] = ContextVar("take", default=None)


def hold(num_bytes: int) -> None:
    """Reserve more memory for the request of this task until its response is sent; Failure 503 if there is none."""
    if take := _take.get():
        take(num_bytes)


@contextmanager
def charged_to(take: Take) -> Iterator[None]:
    """Context in which `take` gets the memory that this task needs for several requests."""
    before = _take.set(take)
    try:
        yield
    finally:
        _take.reset(before)


class MemoryBudget:
    """Budget of `max_bytes`, and the share of each of `requests`. Belongs to one event loop.

    Uploads of `slow_s` seconds and more may be ended in favour of newer requests.
    """

    def __init__(self, max_bytes: int, slow_s: float = DoorLimits.slow_upload_s) -> None:
        self.used = 0
        self._max_bytes, self._slow_s = max_bytes, slow_s
        self.requests: dict[Held, None] = {}  # oldest first

    def held(self) -> Held:
        """Return the reservation of one request: a context manager, released on exit."""
        return Held(self)

    def make_room(self, num_bytes: int, wanted_by: Held) -> None:
        """End slow uploads, oldest first, until `num_bytes` are free; if they do not suffice, end none: Failure 503."""
        missing = self.used + num_bytes - self._max_bytes
        if missing <= 0:
            return
        before = asyncio.get_running_loop().time() - self._slow_s
        slow = [each for each in self.requests if each.end_upload and each.since < before and each is not wanted_by]
        if sum(each.num_bytes for each in slow) < missing:
            raise out_of_memory()
        for each in slow:
            if self.used + num_bytes > self._max_bytes:
                each.cut()


def out_of_memory() -> Failure:
    message = (
        "the requests in progress use all the memory that SIE_DOOR_MAX_MEMORY_BYTES allows; retry later, or send "
        "smaller requests"
    )
    return Failure("busy", message, retry_after_s=BUSY_S, headers={"Connection": "close"})
