"""Open calls, whose client still waits: a small mapped file per process of a door or sidecar, shared with the stages.

A door, which here also means a sidecar, cannot cancel a call, because Triton does not pass a cancellation to the steps
of an ensemble. Each call therefore has a slot in the file, which holds the call's number while its client waits. Its
token, a request parameter, names slot and number. The call is over once the slot holds another number, or its door has
ended.

Triton never answers a request that a stage has deferred if the stage's process dies. A stage therefore writes its pid
into the slots of the calls that it has deferred, and the door looks whether those processes live.
"""

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.errors import InputError
from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import STAGES
from sie_triton.system.host.files import reserve
from sie_triton.system.processes.pids import ProcessId, is_alive

# Request parameter that carries the token of a call.
CALL = "sie_call"

# Request parameter of a call that gives way to all others, however small it is.
BULK = "sie_bulk"

# Maximum number of calls of one door process that can be cancelled, or found lost; further ones run to their deadline.
NUM_PLACES = 4096

# Columns of a slot: the number of its call, and for each stage the pids of the processes that have deferred it, or 0.
# A stage has two processes while one takes the place of the other.
NUMBER, PIDS_OF_STAGE = 0, 2
NUM_COLUMNS = 1 + PIDS_OF_STAGE * len(STAGES)

NUM_BYTES = 8 * NUM_PLACES * NUM_COLUMNS

# Slot of a call that found no free one.
NO_PLACE = -1


class CallLost(Exception):
    """A process died that had deferred a request of the call, which Triton will not answer."""


class CallBook:
    """Calls of this door process. Belongs to one event loop. Raises OSError if `directory` is not writable.

    Stages keep the file mapped for as long as the process lives, so the process writes the same file if it has another
    book. A later door removes the files of processes that have ended.
    """

    def __init__(self, directory: Path) -> None:
        self._door = ProcessId.of(os.getpid())
        self._name = f"{_namespace()}.{self._door.pid}.{self._door.started}"
        self._path = _path(directory, self._door)
        directory.mkdir(parents=True, exist_ok=True)
        remove_dead(directory)
        if not self._path.exists():  # a file that became shorter would end the stages that map it
            reserve(self._path, NUM_BYTES)
        self._slots = _mapped(self._path)
        self._num_calls = int(self._slots[:, NUMBER].max())  # no later call is taken for one of an earlier book
        self._slots[:] = 0
        self._free = deque(range(len(self._slots)))
        self._open: dict[int, OpenCall] = {}

    @property
    def is_there(self) -> bool:
        """False if a server that was started anew has removed the file."""
        return self._path.exists()

    def call(self) -> "OpenCall":
        return OpenCall(self)

    def begin(self, call: "OpenCall") -> tuple[int, str]:
        """Return a slot for a new call, and the call's token; NO_PLACE and no token if no slot is free."""
        if not self._free:
            return NO_PLACE, ""
        place = self._free.popleft()
        self._num_calls += 1
        self._slots[place] = self._num_calls, *[0] * (NUM_COLUMNS - 1)
        self._open[place] = call
        return place, f"{self._name}.{place}.{self._num_calls}"

    def revoke(self, place: int) -> None:
        """Tell the stages that the client of a call no longer waits."""
        if place != NO_PLACE:
            self._slots[place, NUMBER] = 0

    def end(self, place: int) -> None:
        if place != NO_PLACE:
            self.revoke(place)
            del self._open[place]
            self._free.append(place)

    def end_lost(self) -> None:
        """Revoke each call that will get no answer, because a process died that had deferred it, and tell its owner."""
        deferred = self._slots[:, NUMBER + 1 :]  # stages change it meanwhile
        dead = [pid for pid in np.unique(deferred).tolist() if pid and not is_alive(pid)]
        for place in np.flatnonzero(np.isin(deferred, dead).any(axis=1)).tolist() if dead else ():
            if (call := self._open.get(place)) is not None:
                call.revoke()
                call.when_lost()


class OpenCall:
    """Context manager of one call: gives its token as a request parameter, or no parameter if no slot is free.

    `when_lost()` is called, perhaps more than once, if the call will get no answer.
    """

    __slots__ = ("_book", "_place", "when_lost")

    def __init__(self, book: CallBook) -> None:
        self._book, self._place = book, NO_PLACE
        self.when_lost: Callable[[], None] = nothing

    def __enter__(self) -> dict[str, str]:
        self._place, token = self._book.begin(self)
        return {CALL: token} if token else {}

    def __exit__(self, *_: object) -> None:
        self._book.end(self._place)
        self._place = NO_PLACE

    def revoke(self) -> None:
        """Tell the stages that the client no longer waits."""
        self._book.revoke(self._place)


@asynccontextmanager
async def unless_lost(call: OpenCall) -> AsyncIterator[None]:
    """Context of work that waits for the answer to `call`. If that will not come, the work is cancelled: CallLost."""
    try:
        async with asyncio.timeout(None) as loss:
            call.when_lost = partial(_expire, loss)
            yield
    except TimeoutError:
        if not loss.expired():
            raise
        raise CallLost("a process of the model died before it answered; the server replaces it; retry") from None
    finally:
        call.when_lost = nothing


def _expire(timeout: asyncio.Timeout) -> None:
    if not timeout.expired():
        timeout.reschedule(0.0)


def nothing() -> None:
    """Do nothing about the loss of a call that nobody waits for."""


class Call(NamedTuple):
    """A door's call, as a stage sees it. Any thread may call the methods. Equal for the requests of one call."""

    book: "Book"
    place: int
    number: int

    def is_revoked(self) -> bool:
        """True once the client has disconnected, or the door has ended."""
        return self.book.number(self.place) != self.number

    def hold(self) -> None:
        """Tell the door that this process has deferred a request of the call."""
        self.book.replace(self.place, self.number, 0, os.getpid())

    def release(self) -> None:
        """Tell the door that this process has answered all requests of the call that it had deferred."""
        self.book.replace(self.place, self.number, os.getpid(), 0)


class Book:
    """The file of one door process, as the stage with the number `stage` sees it."""

    def __init__(self, directory: Path, door: ProcessId, stage: int, limits: RecordLimits = RecordLimits()) -> None:
        """Raise OSError or ValueError if there is no such file, or if it has another size."""
        path, first = _path(directory, door), NUMBER + 1 + PIDS_OF_STAGE * stage
        if path.stat().st_size != NUM_BYTES:
            raise ValueError(f"{path} is damaged")
        self._door, self._columns = door, range(first, first + PIDS_OF_STAGE)
        self._slots = _mapped(path)
        self._is_alive, self._seen, self._limits = True, 0.0, limits

    def number(self, place: int) -> int:
        """Return the number of the call in the slot `place`; 0 if its client no longer waits."""
        return int(self._slots[place, NUMBER]) if self.is_alive else 0

    def replace(self, place: int, number: int, old: int, pid: int) -> None:
        """Replace a pid of the stage in the slot of call `number` by another; 0 is none.

        Do nothing if the slot has another call, or does not have the pid `old`.
        """
        slot = self._slots[place]
        if slot[NUMBER] == number:
            found = next((column for column in self._columns if slot[column] == old), None)
            if found is not None:
                slot[found] = pid

    @property
    def is_alive(self) -> bool:
        """True if the door process runs; cached for a second."""
        now = monotonic()
        if self._is_alive and now - self._seen > self._limits.door_alive_s:
            self._is_alive, self._seen = self._door.is_alive, now
        return self._is_alive


class Calls:
    """Calls of all doors that serve from one directory, for one stage. Any thread may call the methods."""

    def __init__(self, directory: Path, stage: str, limits: RecordLimits = RecordLimits()) -> None:
        self._directory, self._stage, self._limits = directory, STAGES.index(stage), limits
        self._books: dict[ProcessId, Book] = {}
        self._lock = Lock()

    def find(self, token: str) -> Call | None:
        """Return the call; None if there is no token or its door runs elsewhere. InputError for a malformed token."""
        if not token:
            return None
        try:
            namespace, pid, started, place, number = map(int, token.split("."))
            if not 0 <= place < NUM_PLACES:
                raise ValueError(f"place {place}")
        except ValueError as exc:
            raise InputError.at(
                f"parameter {CALL}", "is set by the server's own HTTP routes only; leave it out"
            ) from exc
        book = self._book(ProcessId(pid, started)) if namespace == _namespace() else None
        return None if book is None else Call(book, place, number)

    def _book(self, door: ProcessId) -> Book | None:
        with self._lock:
            found = self._books.get(door)
            if found is None:
                self._books = {each: book for each, book in self._books.items() if book.is_alive}
                try:
                    found = self._books[door] = Book(self._directory, door, self._stage, self._limits)
                except (OSError, ValueError):
                    return None
            return found


def _mapped(path: Path) -> npt.NDArray[np.int64]:
    return np.asarray(np.memmap(path, "<i8", "r+", shape=(NUM_PLACES, NUM_COLUMNS)))


@cache
def _namespace() -> int:
    """Return the number of this process's PID namespace. A pid from another namespace means another process here."""
    return os.stat("/proc/self/ns/pid").st_ino


def remove_dead(directory: Path) -> None:
    """Remove the files of doors that have ended."""
    for path in directory.glob("door-*.calls"):
        found = re.fullmatch(r"door-(\d{1,10})-(\d{1,20})\.calls", path.name, re.ASCII)
        if found and not ProcessId(int(found[1]), int(found[2])).is_alive:
            path.unlink(missing_ok=True)


def _path(directory: Path, door: ProcessId) -> Path:
    return directory / f"door-{door.pid}-{door.started}.calls"
