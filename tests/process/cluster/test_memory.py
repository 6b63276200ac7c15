"""Requests of more bytes than a sidecar has memory for: few are at Triton at a time, and all are answered."""

import asyncio
from collections.abc import Callable

from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar.sidecar import Sidecar
from tests.process.cluster.conftest import MODEL, OTHER, FakeTriton, in_cluster, served, until, until_empty

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
    found, publish = [], sidecar._runner._publish

    async def spied(subject: str, data: bytes = b"") -> None:
        if data.startswith(b"-NAK"):
            found.append(data)
        await publish(subject, data)

    sidecar._runner._publish = spied
    return found


@in_cluster(max_requests_bytes=20 * MIB)
async def test_few_large_requests_are_fetched_at_a_time(cluster):
    """No other is fetched in vain."""
    queue, sidecar, triton = await cluster.pair()
    most, in_vain = most_at_once(triton), returned(sidecar)
    names = [str(i) for i in range(20)]
    assert await asyncio.gather(*(asked(queue, name, 5 * MIB) for name in names)) == names
    assert most() <= 4
    assert in_vain == []
    await until_empty(queue)
    await until(lambda: sidecar._runner.memory.take_in_turn("all", 20 * MIB))  # nothing is held


@in_cluster(max_requests_bytes=12 * MIB)
async def test_requests_of_all_sizes_are_answered_beside_each_other(cluster):
    small = SidecarLimits.small_bytes
    sizes = 10, small // 3, small - 100, small + 100, 3 * MIB, 7 * MIB

    queue = await cluster.gateway()
    for name in ("w0", "w1"):
        await cluster.worker(name)
    await served(queue, 2)
    names = [str(i) for i in range(90)]
    works = (asked(queue, name, sizes[i % len(sizes)], (MODEL, OTHER)[i % 7 % 2]) for i, name in enumerate(names))
    assert await asyncio.gather(*works) == names
    await until_empty(queue)
