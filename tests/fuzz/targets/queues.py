"""Work on its way through a cluster: calls of Triton's gRPC at a gateway, and work that a sidecar fetches."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from hypothesis import strategies as st

from sie_triton.cluster.gateway.kserve import SERVICE, KServe, fields
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.port import Receiving
from sie_triton.cluster.gateway.questions import Questions
from sie_triton.cluster.gateway.requests import Requests
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Answer, Cancel, Work
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.cluster.sidecar.server import Response
from sie_triton.doors.memory import MemoryBudget
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings, read_settings
from tests.fuzz.damage import damaged, one
from tests.fuzz.target import Target
from tests.fuzz.targets.cluster import HEALTH, MESSAGES, with_size
from tests.fuzz.targets.joining import messages_of
from tests.fuzz.trees import changed, to_msgpack
from tests.support.joined import request, respond

RECEIPT = "$JS.ACK.SIE_WORK_p.m.1.2.3.4.5"
RECEIPTS = (RECEIPT, "$JS.ACK._.x.SIE_WORK_p.m.1.2.3.4.5.6", RECEIPT.replace("1", "999"))

OF_ANY_WORKER = ("ServerMetadata", "ModelMetadata", "ModelConfig")
METHODS = ("ModelInfer", "ModelInfer", "ModelReady", "ServerLive", "ModelStatistics", *OF_ANY_WORKER)
OTHERS = ("ModelStreamInfer", "RepositoryIndex", "x", "")

METADATA = (
    ("traceparent", "00-x"),
    ("x-request-id", "é" * 200),
    ("x-sie-pool", "p"),
    ("x-sie-pool", "no such pool."),
    ("x-sie-machine-profile", "l4"),
    ("authorization", "Bearer x"),
    ("x-bin", b"\xff"),
)

# Statuses with which a call may end: a client's faults, and a moment that is not the right one.
ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
}


class Aborted(Exception):
    """Raised by a call's context in place of gRPC's own exception."""


class Call:
    """Stands for grpc.aio.ServicerContext."""

    def __init__(self, message: bytes, metadata: tuple[tuple[str, Any], ...], seconds: float | None) -> None:
        self._message, self._metadata, self._seconds = message, metadata, seconds
        self.when_done: list[Callable[[Any], None]] = []

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return self._seconds

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.when_done.append(callback)

    async def read(self) -> bytes:
        return self._message

    async def abort(self, status: grpc.StatusCode, text: str) -> None:
        assert status in ALLOWED, (status, text)
        assert len(text) < 6000
        raise Aborted


class Nats:
    """Stands for the client of NATS and its streams: it takes everything, and answers questions with `answer`."""

    max_payload = 1 << 20
    is_connected = True

    def __init__(self) -> None:
        self.answer = b""

    def new_inbox(self) -> str:
        return "inbox"

    async def publish(self, subject: str, data: bytes = b"", **_: Any) -> Any:
        assert subject.isascii()
        assert " " not in subject
        return SimpleNamespace(seq=1)

    async def request(self, subject: str, data: bytes, timeout: float = 0.0) -> Any:
        return SimpleNamespace(data=self.answer)


@contextmanager
def kserve(directory: Path) -> Iterator[Target]:
    """Yield the target of calls of Triton's gRPC at a gateway."""
    settings = read_settings(data_dir=directory / "data")
    pools, answers = Pools("p"), [Answer(0, "w"), Answer(0, "w", 3, "[input] wrong")]

    async def submit(pool: str, model: str, sent: bytes, left_s: float, tenant: str) -> tuple[Answer, bytes]:
        assert left_s > 0
        assert all(start < end <= len(sent) for _, start, end in fields(sent, GatewayLimits.max_fields + len(METADATA)))
        return answers[len(sent) % 2], b""

    nats: Any = Nats()
    nats.answer = answers[0].packed()
    queue: Any = SimpleNamespace(pools=pools, submit=submit, questions=Questions(nats, pools), is_ready=True)
    requests = [request(b"a"), request(b"b", model="org__m", timeout=5), request(b"b", model="m-score", id="x" * 99)]
    cases = st.tuples(
        st.one_of(one(METHODS), one(OTHERS)),
        messages_of(requests),
        st.lists(one(METADATA), max_size=2).map(tuple),
        one((None, 5.0, 0.0, -1.0, 1e300)),
    )
    with asyncio.Runner() as runner:
        handlers = KServe(settings, queue, MemoryBudget(1 << 30), Receiving(1 << 30))
        yield Target(cases, lambda case: runner.run(_called(handlers, pools, *case)), (Aborted,))


async def _called(handlers: KServe, pools: Pools, method: str, sent: bytes, metadata: Any, seconds: Any) -> None:
    pools.workers.take(HEALTH)
    details: Any = SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=metadata)
    handler = handlers.service(details)
    assert handler is not None
    answer: Callable[..., Awaitable[Any]] = handler.stream_unary
    call = Call(sent, metadata, seconds)
    try:
        assert isinstance(await answer(None, call), bytes)
    finally:
        for each in call.when_done:
            each(call)


@contextmanager
def work(directory: Path) -> Iterator[Target]:
    """Yield the target of what a sidecar and a gateway fetch from the queue."""
    responses = [Response(0, "", respond(request(b"a", b"b")).SerializeToString())]
    responses += [Response(3, "[input] text: wrong", b""), Response(14, "[busy retry=1] busy", b"")]
    responses += [Response(14, "Socket closed", b""), Response(13, "x", b"\xff")]
    of_work = [Work("g", 1, 4e9, "m"), Work("g", 2, 4e9, "m", 1), Work("g", 3, 0.0, "m"), Work("g", 4, 4e9, "a.b", 2)]
    bodies = messages_of([request(b"a"), request(b"a", b"b", timeout=5)])
    heads = [[1, *each] for each in (_fields(work) for work in of_work)]
    built = st.builds(with_size, st.one_of(one(heads).map(to_msgpack), changed(heads).map(to_msgpack)), bodies)
    others = damaged([each.packed(b"body") for each in (*MESSAGES, Cancel("g", 1))])
    cases = st.lists(st.tuples(st.one_of(built, built, others), one(RECEIPTS), one(responses)), min_size=1, max_size=3)
    settings = read_settings(data_dir=directory / "data", max_concurrent_batches=1)
    settings.status_dir.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner() as runner:
        calls = CallBook(settings.status_dir)
        yield Target(cases, lambda case: runner.run(_worked(settings, calls, case)))


def _fields(work: Work) -> list[Any]:
    return [work.gateway, work.number, work.deadline, work.model, work.num_deaths, work.payload, work.tenant]


async def _worked(settings: Settings, calls: CallBook, case: list[tuple[bytes, str, Response]]) -> None:
    """Let a sidecar run some messages at once, and a gateway take the answers to them."""
    nats: Any = Nats()
    waiting = [response for _, _, response in case]

    async def call(method: str, data: bytes, seconds: float) -> Response:
        await asyncio.sleep(0)
        return waiting[len(data) % len(waiting)]

    server: Any = SimpleNamespace(triton=SimpleNamespace(call=call), calls=calls)
    sidecar = Runner(nats, nats, server, settings, "w")
    pools = Pools("p")
    requests = Requests(nats, nats, "g", time.time, pools, None)  # type: ignore[arg-type]
    sent = [SimpleNamespace(data=data, reply=receipt, subject="sie.x") for data, receipt, _ in case]
    for message in sent:
        for take in (
            sidecar.withdraw,
            sidecar.gateways.hear_gateway,
            requests.take,
            pools.workers.hear,
            pools.hear_gateway,
        ):
            await take(message)  # type: ignore[arg-type]
    tasks = [sidecar.start(message, "p") for message in sent]  # type: ignore[arg-type]
    await asyncio.gather(*tasks)
    assert not sidecar._open
    assert not sidecar._joiner._lines
