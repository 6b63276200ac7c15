"""Requests and answers that are larger than a message of the queue."""

import asyncio
import time

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Work
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.errors import InputError
from tests.process.cluster.conftest import (
    DIED,
    MODEL,
    Cluster,
    request,
    served,
    until,
    until_empty,
)


def large(name: str) -> bytes:
    return service_pb2.ModelInferRequest(
        model_name=MODEL, id=name, raw_input_contents=[bytes(9 * 1024**2)]
    ).SerializeToString()


def test_a_request_larger_than_a_message_is_refused_by_name(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        with pytest.raises(InputError, match="the queue takes"):
            await queue.submit("default", MODEL, bytes(20 * 1024**2), 5)

    run(test)


def test_a_request_larger_than_a_message_goes_through_the_payload_store(run, tmp_path):
    async def test(cluster: Cluster) -> None:
        store = {"payload_store_url": str(tmp_path / "objects")}
        queue, _, triton = await cluster.pair(**store)
        sizes = []

        async def call(method: str, data: bytes, seconds: float) -> Response:
            sizes.append(len(data))
            return Response(0, "", service_pb2.ModelInferResponse(id="a").SerializeToString())

        triton.call = call
        answer, _ = await queue.submit("default", MODEL, large("a"), 20)
        assert answer.status == 0
        assert sizes[0] > 9 * 1024**2
        await until(lambda: not payloads(tmp_path))
        await until_empty(queue)

    run(test)


def payloads(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_payloads_of_a_gateway_that_ended_are_removed(tmp_path):
    store = Payloads((tmp_path / "objects").as_uri())
    asyncio.run(store.put("gone", 1, time.time() - 1000, b"late"))
    asyncio.run(store.put("alive", 2, time.time() + 1000, b"in time"))
    asyncio.run(store.keep("gone", 3, b"dead"))
    assert asyncio.run(store.sweep()) == 1
    assert sorted(payloads(tmp_path)) == ["alive.2", "gone.3"]


def test_a_large_poisoned_request_is_kept_in_the_store(run, tmp_path):
    async def test(cluster: Cluster) -> None:
        store = {"payload_store_url": str(tmp_path / "objects")}
        queue, _, triton = await cluster.pair(**store)

        async def die(name: str) -> Response:
            return DIED

        triton.behave = die
        answer, _ = await queue.submit("default", MODEL, large("poison"), 20)
        assert (answer.status, triton.seen) == (13, ["poison", "poison"])
        dead = await (await cluster.operator()).get_last_msg(subjects.DEAD_STREAM, subjects.dead("default", MODEL))
        work, _ = Work.read(dead.data)
        assert (tmp_path / "objects" / work.payload).read_bytes() == large("poison")

    run(test)


def test_an_answer_larger_than_a_message_comes_in_parts(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        large = service_pb2.ModelInferResponse(id="a", raw_output_contents=[bytes(range(256)) * 100_000])

        async def answer(name: str) -> Response:
            return Response(0, "", large.SerializeToString())

        triton.behave = answer
        await served(queue)
        _, body = await queue.submit("default", MODEL, request("a"), 20)
        assert body == large.SerializeToString()
        await until_empty(queue)

    run(test)
