"""Clients of a joiner before a stand-in for Triton, which answers when the test says so."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from tritonclient.grpc import service_pb2

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar.joining import Joiner, Sent
from sie_triton.cluster.sidecar.server import Response
from sie_triton.records.calls import CallBook, OpenCall
from tests.support.joined import add, elements_of, request, respond

NOW, SECONDS = 1000.0, 60.0


DEADLINE_EXCEEDED = 4
INVALID, AWAY = 3, 14


@dataclass
class Call:
    """A call of Triton that waits for its response."""

    message: Any
    seconds: float
    response: "asyncio.Future[Response]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def texts(self) -> list[bytes]:
        return elements_of(self.message)

    def answer(self, response: Response | None = None) -> None:
        if not self.response.done():
            self.response.set_result(response or answer_to(self.message))


def answer_to(message: Any) -> Response:
    """Return Triton's response: an error for all items if the text of one begins with "bad"."""
    for text in elements_of(message):
        if text.startswith(b"bad"):
            return Response(INVALID, f"{text.decode()} is invalid", b"")
    is_normal = "normalize" in message.parameters and message.parameters["normalize"].bool_param
    return Response(0, "", respond(message, ["scores" if is_normal else "dense"]).SerializeToString())


class FakeTriton:
    """Stand-in for LocalTriton. `calls` are all so far; `next` waits for the first that was not returned yet."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._new: asyncio.Queue[Call] = asyncio.Queue()

    @property
    def num_open(self) -> int:
        return sum(not call.response.done() for call in self.calls)

    async def call(self, method: str, data: bytes, seconds: float) -> Response:
        assert method == "ModelInfer"
        call = Call(service_pb2.ModelInferRequest.FromString(data), seconds)
        self.calls.append(call)
        self._new.put_nowait(call)
        return await call.response

    async def next(self) -> Call:
        return await asyncio.wait_for(self._new.get(), 30)

    async def none(self) -> None:
        """Check that no call follows."""
        await all_ran()
        assert self._new.empty()


async def all_ran() -> None:
    """Let every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


def joiner_of(
    triton: FakeTriton, max_calls: int = 1, max_requests: int = 64, *, opened: list[OpenCall] | None = None, **more: Any
) -> Joiner:
    """Return a joiner; `opened` gets the calls of its joined requests."""
    with TemporaryDirectory() as directory:
        book = CallBook(Path(directory))

    def open_call() -> OpenCall:
        call = book.call()
        if opened is not None:
            opened.append(call)
        return call

    server: Any = SimpleNamespace(triton=triton, calls=SimpleNamespace(call=open_call))
    return Joiner(server, max_calls=max_calls, max_requests=max_requests, **more)


class Clients:
    """Requests on their way through a joiner."""

    def __init__(self, max_calls: int = 1, max_requests: int = 64, **limits: int) -> None:
        self.triton = FakeTriton()
        self.opened: list[OpenCall] = []
        of_joined = SidecarLimits(**limits)
        self.joiner = joiner_of(self.triton, max_calls, max_requests, opened=self.opened, limits=of_joined)

    def send(self, *texts: bytes, model: str = "m", seconds: float = SECONDS, **options: Any) -> "asyncio.Task[Any]":
        return self.send_message(request(*texts, model=model, **options), seconds)

    def send_message(self, message: Any, seconds: float = SECONDS) -> "asyncio.Task[Any]":
        call = self.joiner.call((message.model_name, ""), Sent(message.SerializeToString()), seconds)
        return asyncio.create_task(call)

    async def occupy(self, num: int = 1) -> list[Call]:
        """Return calls that are running, of other requests."""
        for place in range(num):
            self.send(b"occupies %d" % place)
        return [await self.triton.next() for _ in range(num)]

    async def waiting(self, *tasks: "asyncio.Task[Any]") -> None:
        """Let the requests reach the joiner. None of them is answered."""
        await self.triton.none()
        assert not any(task.done() for task in tasks)

    async def following(self, *texts: bytes, **options: Any) -> "tuple[list[asyncio.Task[Any]], Call]":
        """Return requests of one text that have waited for a call to end, and the call that follows it."""
        [running] = await self.occupy()
        tasks = [self.send(text, **options) for text in texts]
        await self.waiting(*tasks)
        running.answer()
        return tasks, await self.triton.next()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **fixtures), 60))

    return run


def with_clients(max_calls: int = 1, max_requests: int = 64, **limits: int) -> Callable[..., Any]:
    """Run a test in an event loop. It gets clients, and then its fixtures."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(function)
        def run(**fixtures: Any) -> None:
            async def check() -> None:
                clients = Clients(max_calls, max_requests, **limits)
                await function(clients, **fixtures)
                await all_ran()
                assert not clients.joiner._tasks

            asyncio.run(check())

        signature = inspect.signature(function)
        run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return run

    return decorate


async def texts_of_calls(clients: Clients, *texts: list[bytes]) -> list[list[bytes]]:
    """Return the texts of each call that follows if requests with these texts wait."""
    [running] = await clients.occupy()
    tasks = [clients.send(*each) for each in texts]
    await clients.waiting(*tasks)
    running.answer()
    calls = []
    while not all(task.done() for task in tasks):
        calls.append(await clients.triton.next())
        calls[-1].answer()
        await all_ran()
    for task, each in zip(tasks, texts, strict=True):
        assert task.result() == answer_to(request(*each))
    return [call.texts for call in calls]


def of_all_items() -> bytes:
    """Return a response with one row for all items."""
    response = service_pb2.ModelInferResponse()
    add(response, "total", "FP32", [1], bytes(4))
    return response.SerializeToString()
