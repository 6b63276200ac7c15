"""Requests and answers that are larger than a message of the queue."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster import subjects
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Work
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.sidecar.server import Response
from sie_triton.errors import BusyError, InputError
from sie_triton.models.weights import object_store
from sie_triton.models.weights.object_store import StoreError
from tests.process.cluster.conftest import (
    DIED,
    MODEL,
    asked,
    in_cluster,
    request,
    served,
    until,
    until_empty,
)
from tests.support.joiners import in_loop
from tests.support.object_store import BUCKET


def large(name: str) -> bytes:
    return service_pb2.ModelInferRequest(
        model_name=MODEL, id=name, raw_input_contents=[bytes(9 * 1024**2)]
    ).SerializeToString()


@in_cluster()
async def test_a_request_larger_than_a_message_is_refused_by_name(cluster):
    queue = await cluster.gateway()
    with pytest.raises(InputError, match="the queue takes"):
        await queue.submit("default", MODEL, bytes(20 * 1024**2), 5)


@in_cluster()
async def test_a_request_larger_than_a_message_goes_through_the_payload_store(cluster, tmp_path):
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


MAX_READS = SidecarLimits.max_reads
URL = f"s3://{BUCKET}/payloads"


@in_cluster()
async def test_a_store_that_does_not_answer_reads_holds_up_no_other_request(cluster, s3, monkeypatch):
    """Reads have few of the places. Once the store answers again, every request is answered."""
    queue, _, triton = await cluster.pair(payload_store_url=URL)
    s3.silent = ("GET",)
    tasks = [asyncio.create_task(queue.submit("default", MODEL, large(str(i)), 50)) for i in range(10)]
    await until(lambda: s3.num_asked("payloads") >= MAX_READS and s3.num_asked("payloads", "PUT") >= 10)
    assert triton.seen == []
    monkeypatch.setattr(object_store, "ANSWER_S", 1.0)
    for i in range(3 * MAX_READS):
        assert await asked(queue, f"small {i}") == f"small {i}"
    assert s3.num_asked("payloads") < 10
    s3.silent = ()
    answers = [await task for task in tasks]
    assert {answer.status for answer, _ in answers} == {0}
    names = {service_pb2.ModelInferResponse.FromString(body).id for _, body in answers}
    assert names == {str(i) for i in range(10)}


@in_loop
async def test_a_read_whose_turn_does_not_come_is_given_up():
    """At first after a while, then at once; not any more once a read has ended."""
    answer = asyncio.get_running_loop().create_future()
    reads = Payloads("", SidecarLimits(read_turn_s=0.05))
    reads._store = SimpleNamespace(read=lambda path, max_bytes: asyncio.shield(answer))  # type: ignore[assignment]
    under_way = [asyncio.create_task(reads.get(str(i), 1)) for i in range(MAX_READS)]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(StoreError, match="earlier reads have not ended"):
            await asyncio.wait_for(reads.get("late", 1), 30)
        reads._limits = SidecarLimits(read_turn_s=600)
    answer.set_result(b"x")
    assert await asyncio.gather(*under_way) == [b"x"] * MAX_READS
    assert await reads.get("again", 1) == b"x"


@in_loop
async def test_no_more_of_a_payload_is_read_than_there_is_memory_for(tmp_path):
    store = Payloads((tmp_path / "objects").as_uri())
    path = await store.put("g", 1, time.time() + 60, b"four")
    assert await store.size(path) == 4
    assert await store.get(path, 4) == b"four"
    with pytest.raises(StoreError, match="has 4 bytes, at most 3 are allowed"):
        await store.get(path, 3)
    await store.remove(path)
    assert await store.size(path) is None
    assert await store.get(path, 4) is None


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "refuses"])
@in_cluster()
async def test_a_faulty_store_refuses_large_requests_alone(cluster, s3, monkeypatch, is_silent):
    monkeypatch.setattr(object_store, "ANSWER_S", 0.2)
    monkeypatch.setattr(object_store, "LEAST_BYTES_PER_S", 1 << 30)

    queue, _, _ = await cluster.pair(payload_store_url=URL)
    s3.silent, s3.away = ("PUT", "POST") if is_silent else (), not is_silent
    with pytest.raises(BusyError, match="the payload store does not take the request; retry"):
        await queue.submit("default", MODEL, large("a"), 50)
    assert await asked(queue, "small") == "small"


def payloads(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_payloads_of_a_gateway_that_ended_are_removed(tmp_path):
    store = Payloads((tmp_path / "objects").as_uri())
    asyncio.run(store.put("gone", 1, time.time() - 1000, b"late"))
    asyncio.run(store.put("alive", 2, time.time() + 1000, b"in time"))
    asyncio.run(store.keep("gone", 3, b"dead"))
    assert asyncio.run(store.sweep(time.time())) == 1
    assert sorted(payloads(tmp_path)) == ["alive.2", "gone.3"]


@in_cluster()
async def test_a_large_poisoned_request_is_kept_in_the_store(cluster, tmp_path):
    store = {"payload_store_url": str(tmp_path / "objects")}
    queue, _, triton = await cluster.pair(**store)

    triton.answer(DIED)
    answer, _ = await queue.submit("default", MODEL, large("poison"), 20)
    assert (answer.status, triton.seen) == (13, ["poison", "poison"])
    dead = await (await cluster.operator()).get_last_msg(subjects.DEAD_STREAM, subjects.dead("default", MODEL))
    work, _ = Work.read(dead.data)
    assert (tmp_path / "objects" / work.payload).read_bytes() == large("poison")


@in_cluster()
async def test_an_answer_larger_than_a_message_comes_in_parts(cluster):
    queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
    large = service_pb2.ModelInferResponse(id="a", raw_output_contents=[bytes(range(256)) * 100_000])

    triton.answer(Response(0, "", large.SerializeToString()))
    await served(queue)
    _, body = await queue.submit("default", MODEL, request("a"), 20)
    assert body == large.SerializeToString()
    await until_empty(queue)
