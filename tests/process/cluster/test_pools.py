"""Pools of workers: a request asks for one by its name, or by the kind of its machines."""

import pytest

from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.pools import POOL, PROFILE
from sie_triton.errors import InputError, Unreachable
from tests.process.cluster.conftest import MODEL, in_cluster, request, until


@in_cluster()
async def test_a_request_goes_to_the_pool_that_it_asks_for(cluster):
    queue = await cluster.gateway()
    _, of_default = await cluster.worker("w")
    _, of_large = await cluster.worker("w", pool="large", machine_profile="h100")
    await until(lambda: queue.pools.workers.pools() == ["default", "large"])
    await until(lambda: all(each.is_ready for each in queue.pools.workers.all()))
    for name, asked in (("a", {}), ("b", {POOL: "large"}), ("c", {PROFILE: "h100"}), ("d", {PROFILE: "default"})):
        answer, _ = await queue.submit(queue.pools.chosen(asked), MODEL, request(name), 20)
        assert answer.status == 0
    assert (of_default.seen, of_large.seen) == (["a", "d"], ["b", "c"])


@in_cluster()
async def test_sies_clients_find_workers_by_the_profile_of_their_machine_else_by_its_gpu(cluster):
    queue = await cluster.gateway()
    await cluster.worker("a", machine_profile="l4-spot", gpu_type="l4")
    await cluster.worker("b", gpu_type="h100")
    await cluster.worker("c")
    await until(lambda: len([*queue.pools.workers.all()]) == 3 and queue.is_ready)
    told = await QueueBackend(cluster.settings(), queue).capacity()
    assert {each["name"]: each["gpu"] for each in told["workers"]} == {"a": "l4-spot", "b": "h100", "c": ""}
    assert (told["live_gpu_types"], told["status"]) == (["h100", "l4-spot"], "healthy")


@in_cluster()
async def test_a_worker_is_known_as_long_as_its_own_interval_says(cluster):
    queue = await cluster.gateway()
    cluster.heartbeat_ms = 700  # longer than what the gateway takes for gone by itself
    await cluster.worker("w")
    await until(lambda: queue.pools.workers.alive("default"))
    assert [each.interval_s for each in queue.pools.workers.alive("default")] == [0.7]
    assert queue.pools.workers.stale_s == pytest.approx(2.1)


@in_cluster()
async def test_a_pool_without_workers_is_refused_with_those_that_have_some(cluster):
    queue, _ = await cluster.gateway(), await cluster.worker("w")
    await until(lambda: queue.pools.workers.pools() == ["default"])
    with pytest.raises(Unreachable, match=r"pool large has no worker \(with workers: default\)") as refused:
        queue.pools.chosen({POOL: "large"})
    assert refused.value.retry_after_s
    with pytest.raises(Unreachable, match="no worker is a 'b200'"):
        queue.pools.chosen({PROFILE: "b200"})
    for name in ("*", "a.b", ">", "a b", "p" * 100):
        with pytest.raises(InputError, match=POOL):
            queue.pools.chosen({POOL: name})
