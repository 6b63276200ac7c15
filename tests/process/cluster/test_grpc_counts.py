"""Calls over gRPC are counted as requests to the door are, by method and by HTTP's status for theirs."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import grpc
import pytest
from grpc import aio

from sie_triton.cluster.gateway.kserve import SERVICE
from sie_triton.cluster.messages import Answer
from sie_triton.doors.counts import DURATION
from sie_triton.errors import BusyError
from tests.process.cluster.test_port import INFER, Gateway, until


def counted() -> Counter[tuple[str, str]]:
    """Return how many requests are counted, by route and status."""
    (metric,) = DURATION.collect()
    samples = [each for each in metric.samples if each.name.endswith("_count")]
    return Counter({(each.labels["route"], each.labels["status"]): int(each.value) for each in samples})


async def answered(gateway: Gateway) -> None:
    await gateway.infer(metadata=[("authorization", "Bearer abc")])


async def without_a_token(gateway: Gateway) -> None:
    await gateway.infer()


async def cancelled(gateway: Gateway) -> None:
    gateway.may_answer.clear()
    call = asyncio.create_task(answered(gateway))
    await until(lambda: len(gateway.requests) == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


def failing(failure: Exception | Answer) -> Callable[[Gateway], Awaitable[None]]:
    """Return a call to which the queue answers with a failure."""

    async def call(gateway: Gateway) -> None:
        async def submit(*_: object) -> tuple[Answer, bytes]:
            if isinstance(failure, Exception):
                raise failure
            return failure, b""

        gateway.queue.submit = submit
        await answered(gateway)

    return call


CALLS = {
    "200": answered,
    "401": without_a_token,
    "499": cancelled,
    "503": failing(BusyError("the queue is full")),
    "404": failing(Answer(1, "w", grpc.StatusCode.NOT_FOUND.value[0], "Request for unknown model")),
    "500": failing(Answer(1, "w", grpc.StatusCode.INTERNAL.value[0], "a fault of a stage")),
    "500 for a fault of the gateway": failing(ZeroDivisionError()),
}


@pytest.mark.parametrize("status", CALLS)
def test_a_call_is_counted_by_its_status(tmp_path, status):
    async def test() -> None:
        before = counted()
        async with asyncio.timeout(60), Gateway(tmp_path, auth_mode="token", auth_tokens="abc") as gateway:
            await asyncio.gather(CALLS[status](gateway), return_exceptions=True)
            await until(lambda: counted() - before == {(INFER, status[:3]): 1})

    asyncio.run(test())


def test_neither_probes_nor_methods_that_clients_make_up_are_counted(tmp_path):
    async def test() -> None:
        before = counted()
        async with asyncio.timeout(60), Gateway(tmp_path) as gateway:
            async with aio.insecure_channel(f"127.0.0.1:{gateway.number}") as channel:
                for method in (f"/{SERVICE}/ServerLive", f"/{SERVICE}/MadeUp", "/made.up/ModelInfer"):
                    await asyncio.gather(channel.unary_unary(method)(b""), return_exceptions=True)
            await gateway.infer()
            await until(lambda: counted() - before == {(INFER, "200"): 1})

    asyncio.run(test())
