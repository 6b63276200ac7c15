"""Messages that clients are sending to a gateway's gRPC, and when they are given up."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import aio

from sie_triton.cluster.gateway.port import Receiving
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.errors import BusyError, DeadlinePassed, InputError


class Sender:
    """Stands for grpc.aio.ServicerContext; its message arrives when it is told."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        return await self.message


class Process:
    """A process that receives, and has `num_bytes`."""

    def __init__(self, **limits: Any) -> None:
        self.num_bytes = 1000
        self.receiving = Receiving(100, lambda: self.num_bytes, GatewayLimits(**limits))

    async def begin(self) -> tuple[Sender, "asyncio.Task[bytes]"]:
        sender = Sender()
        task = asyncio.create_task(self.receiving.message(sender))
        await asyncio.sleep(0)
        return sender, task


def with_process(**limits: Any) -> Callable[..., Any]:
    def decorate(test: Callable[[Process], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            asyncio.run(test(Process(**limits)))

        return run

    return decorate


@with_process()
async def test_a_message_is_returned_whatever_memory_there_is(process):
    process.num_bytes = 10_000
    process.receiving.look()
    sender, task = await process.begin()
    process.receiving.look()  # it has just begun
    sender.message.set_result(b"all")
    assert await task == b"all"


@with_process()
async def test_what_was_arriving_at_the_last_look_gives_way_once_memory_is_short(process):
    _, old = await process.begin()
    process.receiving.look()
    _, new = await process.begin()
    process.num_bytes = 1100
    process.receiving.look()
    assert not old.done()
    process.num_bytes = 1101
    _, newest = await process.begin()
    process.receiving.look()
    for each in (old, new):
        with pytest.raises(BusyError, match="needed the memory"):
            await each
    process.num_bytes = 1000
    process.receiving.look()
    assert not newest.done()
    newest.cancel()


@with_process()
async def test_a_message_that_has_arrived_is_not_given_up(process):
    sender, task = await process.begin()
    process.receiving.look()
    sender.message.set_result(b"all")
    await task
    process.num_bytes = 2000
    process.receiving.look()


@with_process(max_receiving=2)
async def test_the_oldest_gives_way_to_one_too_many(process):
    tasks = [(await process.begin())[1] for _ in range(3)]
    with pytest.raises(BusyError):
        await tasks[0]
    assert not any(each.done() for each in tasks[1:])
    for each in tasks:
        each.cancel()


@with_process(receive_s=0.0)
async def test_a_message_that_never_comes_is_a_passed_deadline(process):
    _, task = await process.begin()
    with pytest.raises(DeadlinePassed):
        await task


@with_process()
async def test_a_call_without_a_message_is_the_clients_fault(process):
    async def read() -> Any:
        return aio.EOF

    with pytest.raises(InputError, match="has no message"):
        await process.receiving.message(SimpleNamespace(read=read))
