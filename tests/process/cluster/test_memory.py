"""Requests of more bytes than a sidecar has memory for: few are at Triton at a time, and all are answered."""

import asyncio
from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.sidecar import memory
from sie_triton.cluster.sidecar.puller import SMALL_BYTES
from sie_triton.cluster.sidecar.sidecar import Sidecar
from tests.process.cluster.conftest import MODEL, OTHER, Cluster, FakeTriton, served, until, until_empty

MIB = 1024**2


def of_bytes(name: str, num_bytes: int, model: str) -> bytes:
    return service_pb2.ModelInferRequest(
        model_name=model, id=name, raw_input_contents=[bytes(num_bytes)]
    ).SerializeToString()


async def asked(queue: Queue, name: str, num_bytes: int, model: str = MODEL) -> str:
    """Return the id in the answer to a request with this id and so many bytes."""
    answer, body = await queue.submit("default", model, of_bytes(name, num_bytes, model), 50)
    assert answer.status == 0, answer.text
    return service_pb2.ModelInferResponse.FromString(body).id


def most_at_once(triton: FakeTriton, is_counted: Callable[[str], bool] = lambda name: True) -> Callable[[], int]:
    """Have a Triton take a while for each request; return a function for the most of them that it had at a time."""
    num_open, most = 0, 0

    async def work(name: str) -> None:
        nonlocal num_open, most
        num_open += is_counted(name)
        most = max(most, num_open)
        await asyncio.sleep(0.05)
        num_open -= is_counted(name)

    triton.behave = work
    return lambda: most


def returned(sidecar: Sidecar) -> list[bytes]:
    """Return the list of what a sidecar gives back to the queue from now on."""
    found, publish = [], sidecar._runner.replies.publish

    async def spied(subject: str, data: bytes = b"") -> None:
        if data.startswith(b"-NAK"):
            found.append(data)
        await publish(subject, data)

    sidecar._runner.replies.publish = spied
    return found


def test_few_large_requests_are_fetched_at_a_time(run, monkeypatch):
    """No other is fetched in vain."""
    monkeypatch.setattr(memory, "MAX_BYTES", 20 * MIB)

    async def test(cluster: Cluster) -> None:
        queue, sidecar, triton = await cluster.pair()
        most, in_vain = most_at_once(triton), returned(sidecar)
        names = [str(i) for i in range(20)]
        assert await asyncio.gather(*(asked(queue, name, 5 * MIB) for name in names)) == names
        assert most() <= 4
        assert in_vain == []
        await until_empty(queue)
        await until(lambda: sidecar._runner.memory.take_in_turn("all", 20 * MIB))  # nothing is held

    run(test)


def test_requests_of_all_sizes_are_answered_beside_each_other(run, monkeypatch):
    monkeypatch.setattr(memory, "MAX_BYTES", 12 * MIB)
    sizes = 10, SMALL_BYTES // 3, SMALL_BYTES - 100, SMALL_BYTES + 100, 3 * MIB, 7 * MIB

    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        for name in ("w0", "w1"):
            await cluster.worker(name)
        await served(queue, 2)
        names = [str(i) for i in range(90)]
        works = (asked(queue, name, sizes[i % len(sizes)], (MODEL, OTHER)[i % 7 % 2]) for i, name in enumerate(names))
        assert await asyncio.gather(*works) == names
        await until_empty(queue)

    run(test)


@pytest.mark.parametrize("max_bytes", [4 * MIB, 20 * MIB], ids=["larger than the memory", "half of it"])
def test_payloads_are_read_as_memory_allows(run, monkeypatch, tmp_path, max_bytes):
    """Small requests pass them."""
    monkeypatch.setattr(memory, "MAX_BYTES", max_bytes)

    async def test(cluster: Cluster) -> None:
        queue, _, triton = await cluster.pair(payload_store_url=str(tmp_path / "objects"))
        most = most_at_once(triton, lambda name: name.startswith("large"))
        names = [f"large {i}" for i in range(8)]
        large = [asyncio.create_task(asked(queue, name, 9 * MIB)) for name in names]
        for i in range(20):
            assert await asked(queue, f"small {i}", 10) == f"small {i}"
        assert await asyncio.gather(*large) == names
        assert most() <= max(1, max_bytes // (9 * MIB))
        await until_empty(queue)

    run(test)


def test_a_payload_that_no_memory_holds_is_refused_by_its_size(run, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "MAX_PAYLOAD_BYTES", 9 * MIB)

    async def test(cluster: Cluster) -> None:
        queue, _, triton = await cluster.pair(payload_store_url=str(tmp_path / "objects"))
        answer, _ = await queue.submit("default", MODEL, of_bytes("a", 9 * MIB, MODEL), 50)
        assert (answer.status, triton.seen) == (3, [])
        assert f"the memory of the worker's sidecar allows {9 * MIB}; send fewer or smaller items" in answer.text
        await until_empty(queue)

    run(test)
