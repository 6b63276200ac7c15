"""Limits of a gateway's gRPC port: what clients without a token, or with bad manners, can take."""

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from threading import Event
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio
from tritonclient.grpc import service_pb2

from benchmarks.ports import free_ports
from sie_triton.cluster.gateway.kserve import SERVICE, KServe
from sie_triton.cluster.gateway.port import Port, Receiving
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Answer
from sie_triton.doors.memory import MemoryBudget, hold
from sie_triton.settings import read_settings
from tests.process.cluster.conftest import until
from tests.support.http2 import (
    DATA,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    WINDOW_BYTES,
    Http2Client,
    message,
)

INFER = f"/{SERVICE}/ModelInfer"
REQUEST = service_pb2.ModelInferRequest(model_name="m").SerializeToString()

MIB = 1 << 20
CALL_BYTES = GatewayLimits.call_bytes

# Statuses in the headers at the end of a call.
OK, INVALID, UNAVAILABLE, UNAUTHENTICATED = (
    b"grpc-status" + bytes([len(code)]) + code for code in (b"0", b"3", b"14", b"16")
)


class Gateway:
    """A port. Its queue answers with `answer` once `may_answer` is set, and the process has `process_bytes`."""

    def __init__(self, root: Any, limits: GatewayLimits = GatewayLimits(), **settings: Any) -> None:
        self._limits = limits
        (self.number,) = free_ports(1)
        self.settings = read_settings(data_dir=root, grpc_port=self.number, **settings)
        self.memory = MemoryBudget(self.settings.door_max_memory_bytes)
        self.process_bytes, self.answer, self.requests = 0, b"an answer", list[bytes]()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __aenter__(self) -> "Gateway":
        async def model_of(pool: str, name: str) -> str:
            return name

        questions, pools = SimpleNamespace(model_of=model_of), SimpleNamespace(chosen=lambda metadata: "p")
        self.queue: Any = SimpleNamespace(questions=questions, pools=pools, submit=self._submit)
        receiving = Receiving(self.settings.door_max_memory_bytes, lambda: self.process_bytes)
        handlers = KServe(self.settings, self.queue, self.memory, receiving)
        self.port = Port(self.settings, handlers, receiving, self._limits)
        await self.port.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.port.stop(0)

    async def _submit(self, pool: str, model: str, sent: bytes, left_s: float, tenant: str) -> tuple[Answer, bytes]:
        self.requests.append(sent)
        await self.may_answer.wait()
        hold(len(self.answer))
        return Answer(1, "w"), self.answer

    async def infer(self, **options: Any) -> bytes:
        """Return the answer that a client of gRPC gets."""
        async with aio.insecure_channel(f"127.0.0.1:{self.number}") as channel:
            return await channel.unary_unary(INFER)(REQUEST, timeout=30, **options)

    async def end_server(self) -> None:
        """Return once a call has ended the server, and another one takes calls."""
        ended = self.port._servers[-1]
        await self.talk(lambda client: client.end(client.call(b"/a/\xff")))
        await until(lambda: self.port._servers[-1] is not ended)

    async def talk(self, conversation: Callable[[Http2Client], Any]) -> Any:
        """Return what a client says of its connection; it blocks, so that it has a thread."""

        def talk() -> Any:
            with Http2Client(self.number) as client:
                return conversation(client)

        return await asyncio.to_thread(talk)


def with_gateway(limits: GatewayLimits = GatewayLimits(), **settings: Any) -> Callable[..., Any]:
    """Run a test in an event loop, with a gateway, and then its fixtures."""

    def decorate(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        given = [*inspect.signature(function).parameters][1:]

        @wraps(function)
        def run(tmp_path: Any, **fixtures: Any) -> None:
            async def test() -> None:
                async with asyncio.timeout(60), Gateway(tmp_path, limits, **settings) as gateway:
                    await function(gateway, **fixtures)

            asyncio.run(test())

        kind = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("tmp_path", *given)])
        return run

    return decorate


def begin(client: Http2Client) -> bytes:
    """Send the beginning of a large message; return the status of its call."""
    stream = client.call(INFER.encode())
    client.send(stream, message(bytes(1000), 32 * MIB))
    return client.status(stream)


@with_gateway(auth_mode="token", auth_tokens="abc")
async def test_without_a_token_nothing_of_a_message_is_read(gateway):
    assert UNAUTHENTICATED in await gateway.talk(begin)
    with pytest.raises(aio.AioRpcError, match="SIE_AUTH_TOKENS") as refused:
        await gateway.infer()
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert await gateway.infer(metadata=[("authorization", "Bearer abc")]) == b"an answer"
    assert gateway.requests == [REQUEST]


@with_gateway()
async def test_a_method_that_the_gateway_does_not_have_is_refused_without_its_message(gateway):
    def begin(client: Http2Client) -> bytes:
        return client.status(client.call(f"/{SERVICE}/RepositoryModelLoad".encode()))

    assert b"it serves models, and controls none" in await gateway.talk(begin)


@with_gateway()
async def test_a_client_may_send_one_window_that_nobody_reads_on_each_of_some_streams(gateway):
    settings = (await gateway.talk(Http2Client.frame)).settings
    assert settings[INITIAL_WINDOW_SIZE] == WINDOW_BYTES
    assert settings[MAX_CONCURRENT_STREAMS] == GatewayLimits.max_streams


@with_gateway()
async def test_compressed_messages_are_refused_by_name(gateway):
    with pytest.raises(aio.AioRpcError, match="'gzip' is disabled") as refused:
        await gateway.infer(compression=grpc.Compression.Gzip)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert gateway.requests == []


@with_gateway()
async def test_a_message_that_is_not_complete_gives_way_when_memory_is_short(gateway):
    beginning = asyncio.create_task(gateway.talk(begin))
    await until(lambda: gateway.memory.used == CALL_BYTES)
    gateway.process_bytes = gateway.settings.door_max_memory_bytes + 1
    assert UNAVAILABLE in await beginning
    await until(lambda: gateway.memory.used == 0)


@with_gateway(door_max_memory_bytes=CALL_BYTES)
async def test_calls_beyond_the_memory_are_refused_before_their_messages(gateway):
    def begin(client: Http2Client) -> bytes:
        for _ in range(2):
            stream = client.call(INFER.encode())
        return client.status(stream)

    assert UNAVAILABLE in await gateway.talk(begin)


@with_gateway()
async def test_an_answer_keeps_its_memory_until_the_client_has_taken_it(gateway):
    is_sent, may_take = Event(), Event()

    def take(client: Http2Client) -> bytes:
        stream, received = client.call(INFER.encode()), 0
        client.send(stream, message(REQUEST), ends=True)
        while received < WINDOW_BYTES:
            frame = client.frame()
            received += len(frame.payload) if frame.kind == DATA else 0
        is_sent.set()
        may_take.wait(60)
        client.give_room(stream, 2 * MIB)
        return client.status(stream)

    gateway.answer = bytes(MIB)
    taking = asyncio.create_task(gateway.talk(take))
    await until(is_sent.is_set)  # so the handler has returned
    assert gateway.memory.used > MIB
    may_take.set()
    assert OK in await taking
    await until(lambda: gateway.memory.used == 0)


@with_gateway(door_max_connections=1)
async def test_connections_beyond_the_limit_are_closed_and_others_stay(gateway):
    async with aio.insecure_channel(f"127.0.0.1:{gateway.number}") as channel:
        call = channel.unary_unary(INFER)
        assert await call(REQUEST) == b"an answer"
        assert await gateway.talk(Http2Client.is_closed)
        assert await call(REQUEST) == b"an answer"


@with_gateway(GatewayLimits(keep_alive_s=1))
async def test_an_idle_connection_is_closed(gateway):
    assert await gateway.talk(Http2Client.is_closed)


@with_gateway(GatewayLimits(head_s=0.2))
async def test_a_connection_that_says_nothing_is_closed(gateway):

    def wait(number: int) -> bool:
        with socket.create_connection(("127.0.0.1", number), 30) as silent:
            while silent.recv(1000):
                pass
        return True

    assert await asyncio.to_thread(wait, gateway.number)


@with_gateway(limits=GatewayLimits(max_connection_s=1, max_age_s=0.1))
async def test_a_connection_whose_client_does_not_read_ends_with_its_age(gateway):
    def ask(client: Http2Client) -> bool:
        client.send(client.call(INFER.encode()), message(REQUEST), ends=True)
        return client.is_closed()

    gateway.answer = bytes(MIB)
    assert await gateway.talk(ask)
    await until(lambda: gateway.memory.used == 0)


@with_gateway()
async def test_at_most_two_servers_are_there(gateway):
    """grpcio 1.85 lets one end at a method that is no text. Its calls go on, and another server takes the next ones;
    each has connections of its own, which take descriptors.
    """
    gateway.may_answer.clear()
    calls = []
    for num_calls in range(1, 4):
        calls.append(asyncio.create_task(gateway.infer(wait_for_ready=True)))
        await until(lambda num_calls=num_calls: len(gateway.requests) == num_calls)
        if num_calls < 3:
            await gateway.end_server()
    with pytest.raises(aio.AioRpcError, match="Cancelling all calls"):
        await calls[0]
    gateway.may_answer.set()
    assert await asyncio.gather(*calls[1:]) == [b"an answer"] * 2
