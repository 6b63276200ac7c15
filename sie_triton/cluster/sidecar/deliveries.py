"""Messages that the queue has delivered to a sidecar: whether their clients wait, and what is left if the sidecar dies.

A message stays in the stream until its gateway has the answer. A receipt, published to the reply subject of the message
(NATS ADR-15), says that work goes on, goes back or is finished. Without one for `ack_wait_s` since the delivery or the
last receipt (`open_consumer`), as after the death of a sidecar, the queue gives the message to any worker that fetches
the model; if none does, one claims it (`placing.py`). The sidecar that takes the place of a killed one need not wait:
it finds the receipts of its work in a mapped file, and returns the work at once.
"""

import asyncio
import logging
import mmap
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Any, Self

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sie_triton.cluster import subjects
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import CANCELLED, Malformed, Work, clock_in
from sie_triton.cluster.sidecar.server import Response
from sie_triton.records.calls import OpenCall
from sie_triton.system.host.files import reserve

log = logging.getLogger(__name__)

# Receipts: the work is finished, goes on, goes back at once, or was none.
DONE, IN_PROGRESS, BACK, NO_WORK = b"", b"+WPI", b"-NAK", b"+TERM"


class Dropped(Exception):
    """The work of a delivery is dropped, because nobody waits for it."""


class Returned(Exception):
    """Work goes back to the queue for `pause_s` seconds, or, with None, for longer after each delivery."""

    def __init__(self, pause_s: float | None = None) -> None:
        super().__init__(pause_s)
        self.pause_s = pause_s


@dataclass(slots=True, eq=False)
class Delivery:
    """A request that the queue has delivered, until the reply to it."""

    work: Work
    body: bytes
    # Name of the pool whose stream has the request.
    pool: str
    # Subject of receipts, of the latest delivery of this message.
    receipt: str
    # Number of the message in its stream, and how often the queue has delivered it.
    sequence: int
    num_deliveries: int
    # The call by which the stages know that its client still waits.
    call: OpenCall
    received_at: float = field(default_factory=monotonic)
    # Time until the call of Triton, in milliseconds.
    waited_ms: float = 0.0
    was_withdrawn: bool = False
    # The response, while the request waits for others to share their call.
    _response: asyncio.Future[Response] | None = None

    @classmethod
    def of(cls, message: Msg, pool: str, call: OpenCall) -> Self:
        """Read a message; raise Malformed or InputError if it is no work, or a name in it cannot be in a subject."""
        work, body = Work.read(message.data)
        subjects.token(work.model)
        subjects.answers(work.gateway)
        if (place := subjects.delivered(message.reply)) is None:
            raise Malformed(f"{message.reply[:80]!r} is not the receipt of a request")
        message.data = b""  # the body is a copy, and a subscription keeps its latest message
        return cls(work, body, pool, message.reply, place.sequence, place.num_deliveries, call)

    def await_response(self, response: asyncio.Future[Response]) -> None:
        self._response = response

    def withdraw(self) -> None:
        """Have the stages drop the request, and end the wait for others to share their call."""
        self.was_withdrawn = True
        self.call.revoke()
        if self._response is not None and not self._response.done():
            self._response.set_result(Response(CANCELLED, "withdrawn", b""))


class Gateways:
    """The latest heartbeat of each gateway, and requests whose clients no longer wait. Belongs to one event loop."""

    def __init__(self, limits: SidecarLimits = SidecarLimits()) -> None:
        self._limits = limits
        self._withdrawn: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._heard: OrderedDict[str, tuple[float, float]] = OrderedDict()  # time by `monotonic`, and the clock then
        self._listening_since = monotonic()

    async def hear_gateway(self, message: Msg) -> None:
        if (clock := clock_in(message.data)) is not None:
            name = message.subject.rpartition(".")[2]
            _remember(self._heard, name, (monotonic(), clock), self._limits.max_gateways)

    def forget_silence(self) -> None:
        """Take no gateway for gone because this sidecar heard nothing itself."""
        self._listening_since = monotonic()

    def withdraw(self, key: tuple[str, int]) -> None:
        """Note that the client of a request no longer waits; the request itself may come later."""
        _remember(self._withdrawn, key, None, self._limits.max_withdrawn)

    def check(self, work: Work) -> None:
        """Raise Dropped if nobody waits for a request, and Returned while its gateway may be gone or its time unknown.

        A gateway that was killed deletes no request, so what is computed meanwhile would be computed again.
        """
        heard = self._heard.get(work.gateway)
        silent_s = monotonic() - max(heard[0] if heard else 0.0, self._listening_since)
        if work.key in self._withdrawn or silent_s > self._limits.gateway_gone_s:
            raise Dropped
        if silent_s > self._limits.gateway_silent_s:
            raise Returned(self._limits.away_pause_s)
        if self.left_s(work) <= 0:
            raise Dropped if heard else Returned(self._limits.away_pause_s)  # this machine's clock may be wrong

    def left_s(self, work: Work) -> float:
        """Return the time until the deadline, by the gateway's clock once it is known: others may be wrong, or jump."""
        at, clock = self._heard.get(work.gateway, (monotonic(), time.time()))
        return work.deadline - clock - (monotonic() - at)


def _remember(table: "OrderedDict[Any, Any]", key: Any, value: Any, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)


FILE = "sidecar.receipts"

# Bytes of a receipt. What does not fit into the file is given to another worker after SidecarLimits.ack_wait_s.
PLACE_BYTES = 1024

EMPTY = b"\0"

# The first place: the latest time at which the queue has heard of all work, by the machine's monotonic clock.
TIME = Struct("<d")


class Receipts:
    """Receipts of this sidecar's work. Belongs to one event loop. Without space for a file, none are kept.

    `left`: the receipts that the sidecar before this one has left in `directory`; `left_at`: when it reported last.
    """

    def __init__(self, directory: Path, num_places: int = 1024) -> None:
        path, num_bytes = directory / FILE, (1 + num_places) * PLACE_BYTES
        self.left_at, self.left = _receipts_in(path, num_bytes)
        self._free: deque[int] = deque()
        self._file: mmap.mmap | bytearray = bytearray(PLACE_BYTES)
        try:
            self._file = _mapped(path, num_bytes)
        except OSError as exc:
            log.warning("%s cannot be written: work that this sidecar leaves waits longer: %s", path, exc)
        else:
            self._free.extend(range(1, 1 + num_places))
        self.reported()

    def reported(self) -> None:
        """Note that the queue hears now of all work that is in progress."""
        TIME.pack_into(self._file, 0, monotonic())

    @contextmanager
    def kept(self, receipt: str) -> Iterator[None]:
        """Keep a receipt within the context, if there is a place for it."""
        data = receipt.encode()
        if not self._free or len(data) > PLACE_BYTES:
            yield
            return
        place = self._free.popleft()
        at = slice(place * PLACE_BYTES, (place + 1) * PLACE_BYTES)
        self._file[at] = data.ljust(PLACE_BYTES, EMPTY)
        try:
            yield
        finally:
            self._file[at] = EMPTY * PLACE_BYTES
            self._free.append(place)

    async def give_back(self, client: Client, limits: SidecarLimits) -> None:
        """Return the work that the sidecar before this one has left. If it had an answer, nothing happens.

        Later the queue may have given it to another worker, from which a receipt would take it away: work younger than
        `report_s` was not reported yet.
        """
        left, self.left = self.left, []
        if 0 <= monotonic() - self.left_at < limits.ack_wait_s - limits.report_s:
            await give_back(client, left)


async def give_back(client: Client, receipts: list[str]) -> None:
    """Return work that a sidecar leaves, this one or that before it, to the queue."""
    for receipt in receipts:
        with suppress(NatsError):
            await client.publish(receipt, BACK)
    if receipts:
        log.info("gave %d requests back that a sidecar leaves", len(receipts))


def _mapped(path: Path, num_bytes: int) -> mmap.mmap:
    """Map a new file of empty places. It takes the place of an old one, which another process may still map."""
    new = path.with_suffix(".new")
    reserve(new, num_bytes)
    os.replace(new, path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), num_bytes)


def _receipts_in(path: Path, num_bytes: int) -> tuple[float, list[str]]:
    """Return the time and the receipts in a file, which may be missing, or damaged."""
    with suppress(OSError), path.open("rb") as file:
        first, data = file.read(PLACE_BYTES), file.read(num_bytes - PLACE_BYTES)
        places = (data[start : start + PLACE_BYTES] for start in range(0, len(data), PLACE_BYTES))
        found = (place.rstrip(EMPTY).decode(errors="replace") for place in places if not place.startswith(EMPTY))
        receipts = [receipt for receipt in found if subjects.delivered(receipt)]
        return (TIME.unpack_from(first)[0], receipts) if receipts else (0.0, [])
    return 0.0, []
