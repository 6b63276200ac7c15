"""Tenants take turns, and what cannot be answered in time is refused at once."""

import asyncio

from tritonclient.grpc import service_pb2

from sie_triton.cluster.limits import SidecarLimits
from tests.process.cluster.conftest import MODEL, OTHER, Cluster, in_cluster, request, served, until


async def sent(queue, name: str, tenant: str, model: str = MODEL, seconds: float = 30) -> str:
    answer, body = await queue.submit("default", model, request(name, model), seconds, tenant)
    assert answer.status == 0, answer.text
    return service_pb2.ModelInferResponse.FromString(body).id


async def flooded(cluster: Cluster, seconds: float):
    """Return a gateway, the Triton of its one worker, and 200 requests of tenant a, each of so many seconds."""
    queue, sidecar, triton = await cluster.pair()
    sidecar._runner.pace.quantum.limit = 4

    triton.take(seconds)
    await until(lambda: queue.pools.workers.alive("default")[0].limit == 4)
    return queue, triton, [asyncio.create_task(sent(queue, f"a{i}", "a")) for i in range(200)]


@in_cluster()
async def test_a_flood_of_one_tenant_lets_another_pass(cluster):
    queue, triton, flood = await flooded(cluster, 0.01)
    behave, is_open = triton.behave, asyncio.Event()

    async def held(name: str) -> None:
        await is_open.wait()
        await behave(name)

    triton.behave = held
    await until(lambda: queue.num_waiting == len(flood))
    other = asyncio.create_task(sent(queue, "b", "b"))
    await until(lambda: queue.num_waiting == len(flood) + 1)
    is_open.set()
    assert await other == "b"
    assert triton.seen.index("b") == 5  # only those that the window lets into the queue were before it
    await asyncio.gather(*flood)


@in_cluster()
async def test_a_flood_for_one_model_lets_another_model_pass(cluster):
    queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
    gate_of_model = asyncio.Event()

    async def stuck(name: str) -> None:
        if name.startswith("a"):
            await gate_of_model.wait()

    triton.behave = stuck
    await served(queue)
    flood = [asyncio.create_task(sent(queue, f"a{i}", "a")) for i in range(50)]
    assert await sent(queue, "b", "b", OTHER) == "b"
    gate_of_model.set()
    await asyncio.gather(*flood)


@in_cluster()
async def test_the_limit_of_one_tenant_does_not_hold_once_there_are_several(cluster):
    """One tenant's requests may wait for each other, and go in calls of any length, for the sake of throughput."""
    queue, sidecar, _ = await cluster.pair()
    runner = sidecar._runner
    for name in ("a1", "a2"):
        await sent(queue, name, "a")
    runner.pace.quantum.limit = 400
    assert runner.pace.longest_call_s() == float("inf")
    await sent(queue, "a3", "a")
    assert runner.pace.most_open == runner.pace.quantum.limit == 400
    await sent(queue, "b1", "b")
    assert (runner.pace.quantum.limit, runner.pace.longest_call_s()) == (64, 0.1)
    assert runner.pace.most_open == 2 * 64  # also what is behind a flood in the queue
    runner.pace.quantum.limit = 16
    await sent(queue, "a4", "a")
    assert (runner.pace.quantum.limit, runner.pace.longest_call_s()) == (16, 0.1)


@in_cluster()
async def test_beside_others_a_tenant_with_few_requests_does_not_wait_for_its_own_calls(cluster):
    """Behind its own call a request would also wait for a pass of the other tenant."""
    queue, sidecar, triton = await cluster.pair(max_concurrent_batches=1)
    await sent(queue, "a", "a")
    gate = triton.hold()
    flood = [asyncio.create_task(sent(queue, "a", "a")) for _ in range(3)]
    await until(lambda: sidecar._runner.num_open == 3)
    assert triton.seen == ["a", "a"]  # a single tenant has one call at a time
    others = [asyncio.create_task(sent(queue, "b", "b")) for _ in range(10)]
    await until(lambda: sidecar._runner.num_open == 13)
    assert triton.seen == ["a", "a", *(SidecarLimits.max_unshared + 1) * "b"]  # then one call at a time again
    gate.set()
    await asyncio.gather(*flood, *others)
