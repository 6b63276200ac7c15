"""Calls over gRPC are counted as requests to the door are, by method and by HTTP's status for theirs."""

import asyncio
from collections import Counter
from collections.abc import Awaitable

import grpc
from grpc import aio

from sie_triton.cluster.gateway.kserve import SERVICE
from sie_triton.cluster.messages import Answer
from sie_triton.doors.counts import DURATION
from sie_triton.errors import BusyError
from tests.process.cluster.test_port import INFER, Gateway, until
from tests.support.joiners import in_loop


def counted() -> Counter[tuple[str, str]]:
    """Return how many requests are counted, by route and status."""
    (metric,) = DURATION.collect()
    samples = [each for each in metric.samples if each.name.endswith("_count")]
    return Counter({(each.labels["route"], each.labels["status"]): int(each.value) for each in samples})


async def answered(gateway: Gateway) -> None:
    await gateway.infer(metadata=[("authorization", "Bearer abc")])


async def cancelled(gateway: Gateway) -> None:
    gateway.may_answer.clear()
    call = asyncio.create_task(answered(gateway))
    await until(lambda: len(gateway.requests) == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


FAILURES = (
    (BusyError("the queue is full"), "503"),
    (Answer(1, "w", grpc.StatusCode.NOT_FOUND.value[0], "Request for unknown model"), "404"),
    (Answer(1, "w", grpc.StatusCode.INTERNAL.value[0], "a fault of a stage"), "500"),
    (ZeroDivisionError(), "500"),  # a fault of the gateway
)


@in_loop
async def test_a_call_is_counted_by_its_status(tmp_path):
    async with asyncio.timeout(60), Gateway(tmp_path, auth_mode="token", auth_tokens="abc") as gateway:

        async def counts(call: Awaitable[None], status: str) -> None:
            before = counted()
            await asyncio.gather(call, return_exceptions=True)
            await until(lambda: counted() - before == {(INFER, status): 1})

        await counts(gateway.infer(), "401")
        await counts(cancelled(gateway), "499")
        gateway.may_answer.set()
        await counts(answered(gateway), "200")
        for failure, status in FAILURES:

            async def submit(*_: object, failure: Exception | Answer = failure) -> tuple[Answer, bytes]:
                if isinstance(failure, Exception):
                    raise failure
                return failure, b""

            gateway.queue.submit = submit
            await counts(answered(gateway), status)


@in_loop
async def test_neither_probes_nor_methods_that_clients_make_up_are_counted(tmp_path):
    before = counted()
    async with asyncio.timeout(60), Gateway(tmp_path) as gateway:
        async with aio.insecure_channel(f"127.0.0.1:{gateway.number}") as channel:
            for method in (f"/{SERVICE}/ServerLive", f"/{SERVICE}/MadeUp", "/made.up/ModelInfer"):
                await asyncio.gather(channel.unary_unary(method)(b""), return_exceptions=True)
        await gateway.infer()
        await until(lambda: counted() - before == {(INFER, "200"): 1})
