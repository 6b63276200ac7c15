"""Pools and workers that exist already keep their names, requests and model files beside leases."""

import asyncio

import pytest

from sie_triton.cluster.gateway.pools import POOL, PROFILE
from sie_triton.errors import Provisioning
from tests.process.cluster.conftest import in_cluster, model_file, served, until
from tests.process.cluster.leasing import http, workers


@in_cluster()
async def test_a_kind_of_machine_that_several_pools_have_leads_to_the_gateways_own(cluster):
    queue = await cluster.gateway()
    for name, pool in (("a", "aaa"), ("b", "default"), ("z", "zzz")):
        await cluster.worker(name, pool=pool, machine_profile="l4")
    await until(lambda: len(list(queue.pools.workers.all())) == 3)
    assert queue.pools.chosen({PROFILE: "l4"}) == "default"


@in_cluster()
async def test_a_lease_takes_no_request_for_a_pool_whose_name_differs_in_case(cluster):
    settings, queue, other = cluster.settings(), await cluster.gateway(pool="Own"), await cluster.gateway()
    lease = {"name": "gpu", "gpus": {"default": 1}}
    async with http(other, settings) as client:
        assert (await client.post("/v1/pools", json={**lease, "name": "OWN"})).status_code == 201
        assert (await client.post("/v1/pools", json=lease)).status_code == 201  # before the pool has a worker
        await until(lambda: {"gpu", "own"} <= queue.pools.leases.keys())
        await cluster.worker("w", pool="GPU")
        await until(lambda: queue.pools.workers.alive("GPU") and other.pools.workers.alive("GPU"))
        assert queue.pools.chosen({POOL: "GPU"}) == "GPU"
        assert queue.pools.chosen({POOL: "Own"}) == "Own"
        with pytest.raises(Provisioning):
            queue.pools.chosen({POOL: "Gpu"})  # the lease, as no pool has this name
        await client.delete("/v1/pools/gpu")
        while (await client.post("/v1/pools", json=lease)).status_code != 400:  # its heartbeat may be late
            await client.delete("/v1/pools/gpu")


@in_cluster()
async def test_a_lease_hides_no_pool_of_the_settings_that_has_no_worker_yet(cluster):
    settings, queue = cluster.settings(), await cluster.gateway(gateway_configured_pools="large,B200")
    other = await cluster.gateway()  # without this setting
    async with http(queue, settings) as client, http(other, settings) as elsewhere:
        for name in ("large", "LARGE", "b200", "default", "Default"):
            answer = await client.post("/v1/pools", json={"name": name, "gpus": {"l4": 1}})
            assert (answer.status_code, answer.json()["detail"]["message"][:6]) == (400, "name: ")
        assert (await elsewhere.post("/v1/pools", json={"name": "large", "gpus": {"l4": 1}})).status_code == 201
        await until(lambda: "large" in queue.pools.leases)
        with pytest.raises(Provisioning):
            queue.pools.chosen({POOL: "large"})
        assert queue.pools.demand == {("large", "")}


@in_cluster()
async def test_a_worker_that_may_not_be_leased_stays(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client, workers(cluster, "a", "b", pool_admission_enabled=False) as made:
        await served(queue, 2)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 2}})
        await until(lambda: "eval" in queue.pools.leases)
        await asyncio.sleep(0.4)
        assert [each.pools for each in made] == [["default"], ["default"]]


@in_cluster()
async def test_a_leased_worker_keeps_the_model_files_of_its_own_pool(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    _, config = await cluster.config()
    async with http(queue, settings) as client, workers(cluster, "a", "b") as (_, b):
        await served(queue, 2)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        await until(lambda: b.pools == ["default", "eval"])
        file = model_file("t/new")
        answer = await config.post("/v1/configs/models", data=file, params={"pool": "default"})
        assert answer.status == 201
        await until(lambda: cluster.servers["b"].added == {"t__new": file})
