"""What a gateway tells scaling rules: demand without workers, the backlog, leases, and refused requests."""

import asyncio

import pytest

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway import metrics
from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.pools import POOL, PROFILE, Pools
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Lease
from sie_triton.errors import BusyError, Provisioning, Unreachable
from tests.process.cluster.conftest import MODEL, in_cluster, left_in_stream, request, until


def shown(values: metrics.Values) -> dict[tuple[str, ...], float]:
    """Return the values of a gauge that are not 0."""
    (metric,) = values._gauge.collect()
    return {tuple(each.labels.values()): each.value for each in metric.samples if each.value}


@pytest.mark.parametrize(("demand_s", "demand"), [(60.0, {("", "h100")}), (0.0, set())])
def test_a_request_counts_as_demand_for_a_while(demand_s, demand):
    pools = Pools("own", ["h100"], limits=GatewayLimits(demand_s=demand_s))
    with pytest.raises(Provisioning):
        pools.chosen({PROFILE: "h100"})
    assert pools.demand == demand


@in_cluster()
async def test_demand_for_pools_that_can_be_started_is_shown(cluster):
    given = {"gateway_configured_pools": "default, large", "gateway_configured_gpus": "h100"}
    queue = await cluster.gateway(**given)
    for asked in ({POOL: "large"}, {PROFILE: "h100"}):
        with pytest.raises(Provisioning, match="no worker"):
            queue.pools.chosen(asked)
    capacity = await QueueBackend(cluster.settings(**given), queue).capacity()
    assert (capacity["configured_gpu_types"], capacity["live_gpu_types"]) == (["h100"], [])
    assert capacity["status"] == "no_workers"
    with pytest.raises(Provisioning, match="pool default has no worker yet"):
        await queue.questions.model_of("default", MODEL)
    for asked in ({POOL: "made-up"}, {PROFILE: "made-up"}):
        with pytest.raises(Unreachable):
            queue.pools.chosen(asked)
    await until(lambda: shown(metrics.DEMAND) == {("default", ""): 1, ("large", ""): 1, ("", "h100"): 1})
    await cluster.worker("w")
    await until(lambda: shown(metrics.READY) == {("default",): 1} and queue.pools.is_served("default", MODEL))
    assert await queue.questions.model_of("default", MODEL) == MODEL


@in_cluster()
async def test_a_kind_of_machine_that_a_pool_lacks_is_demand(cluster):
    queue = await cluster.gateway(gateway_configured_gpus="h100")
    with pytest.raises(Unreachable, match="no worker of pool default"):
        await queue.questions.model_of("default", MODEL)
    await cluster.worker("w", machine_profile="l4")
    await until(lambda: queue.pools.workers.pools() == ["default"])
    for profile in ("h100", "made-up"):
        with pytest.raises(Provisioning, match="it has l4"):
            queue.pools.chosen({POOL: "default", PROFILE: profile})
    await until(lambda: shown(metrics.DEMAND) == {("default", ""): 1, ("", "h100"): 1})


@in_cluster()
async def test_the_backlog_and_what_waits_for_it_are_shown_and_become_0(cluster):
    await cluster.limit_queue(queue_max_messages=200)
    queue, _, triton = await cluster.pair()
    go = triton.hold()
    window = queue.pools.window("default", MODEL)
    tasks = [asyncio.create_task(queue.submit("default", MODEL, request(str(i)), 30)) for i in range(2 * window)]
    await until(lambda: shown(metrics.DEPTH).get(("default",), 0) >= 4)
    await until(lambda: shown(metrics.WAITING).get(("default",), 0) > 0)
    await until(lambda: shown(metrics.FILL) == {("default",): shown(metrics.DEPTH)[("default",)] / 200})
    go.set()
    await asyncio.gather(*tasks)
    await until(lambda: shown(metrics.DEPTH) == shown(metrics.WAITING) == shown(metrics.FILL) == {})
    assert await left_in_stream(queue) == 0


@in_cluster()
async def test_workers_that_leases_ask_for_are_shown_before_they_join(cluster):
    queue = await cluster.gateway()
    await queue.leases.put(Lease("eval", "default", {"l4": 2}, {}, 0, 0.0, 0.0))
    await until(lambda: shown(metrics.LEASED) == {("default", "l4"): 2})
    await queue.leases.end("eval")
    await until(lambda: shown(metrics.LEASED) == {})


@in_cluster()
async def test_refused_requests_are_counted(cluster):
    await cluster.limit_queue(queue_max_messages=1)
    queue, _, triton = await cluster.pair()
    await queue.submit("default", MODEL, request("first"), 20)
    before = metrics.REJECTED.labels("default")._value.get()

    triton.take(0.5)
    found = await asyncio.gather(
        *(queue.submit("default", MODEL, request(str(i)), 20) for i in range(4)), return_exceptions=True
    )
    refused = sum(isinstance(each, BusyError) and bool(each.retry_after_s) for each in found)
    assert refused > 0
    assert metrics.REJECTED.labels("default")._value.get() == before + refused


@in_cluster(confirm_s=0.1)
async def test_requests_that_the_queue_does_not_confirm_are_counted(cluster, monkeypatch):
    """As on a full disk: what is sent is neither stored nor refused."""
    queue, _, _ = await cluster.pair()
    before = metrics.UNSTORED.labels("default")._value.get()
    publish, to_lose = queue._nats.publish, ["the first", "the second"]

    async def unconfirmed(subject: str, *args: object, **options: object) -> None:
        if to_lose and subject == subjects.work("default", MODEL):
            to_lose.pop()
        else:
            await publish(subject, *args, **options)

    monkeypatch.setattr(queue._nats, "publish", unconfirmed)
    answer, _ = await queue.submit("default", MODEL, request("a"), 20)
    assert answer.status == 0
    assert metrics.UNSTORED.labels("default")._value.get() == before + 2
