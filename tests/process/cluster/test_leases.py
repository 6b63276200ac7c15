"""Pools that clients lease, by a gateway's own HTTP; sidecars move as their process would move them."""

import asyncio
import time

import pytest

from sie_triton.cluster.gateway.pools import POOL, PROFILE
from sie_triton.cluster.messages import Lease
from sie_triton.errors import Provisioning, Unreachable
from tests.process.cluster.conftest import MODEL, in_cluster, request, served, until
from tests.process.cluster.leasing import http, state, workers


@in_cluster()
async def test_a_leased_pool_gets_workers_and_gives_them_back(cluster):
    cluster.heartbeat_ms = 400  # on a busy machine, workers whose heartbeats are late would come and go
    settings = cluster.settings()
    queue = await cluster.gateway()
    async with http(queue, settings) as client, workers(cluster, "a", "b", "c", machine_profile="l4") as (a, b, c):
        await served(queue, 3)
        answer = await client.post("/v1/pools", json={"name": "Eval", "gpus": {"l4": 1}})
        assert (answer.status_code, answer.json()["name"]) == (201, "eval")
        # Both may have come for a moment. Then one of them has left again.
        await until(lambda: sorted(each.pools[-1] for each in (a, b, c)) == ["default", "default", "eval"])
        (member,) = (each for each in (a, b, c) if each.pools[-1] == "eval")
        told = (await client.get("/v1/pools/eval")).json()
        assert told["spec"]["gpus"] == {"l4": 1}
        while [each["name"] for each in told["status"]["assigned_workers"]] != [member.name]:
            await asyncio.sleep(0.05)
            told = (await client.get("/v1/pools/eval")).json()
        assert told["status"]["state"] == "active"
        for name, asked in (("x", {}), ("y", {POOL: "eval"}), ("z", {POOL: "EVAL", PROFILE: "l4"})):
            pool = queue.pools.chosen(asked)
            await until(lambda pool=pool: queue.pools.is_served(pool, MODEL))
            assert (await queue.submit(pool, MODEL, request(name), 20))[0].status == 0
        assert member.triton.seen == ["y", "z"]
        assert queue.pools.chosen({PROFILE: "l4"}) == "default"  # a leased pool is for those who name it
        assert (await client.delete("/v1/pools/eval")).status_code == 200
        await until(lambda: member.pools[-1] == "default")
        await served(queue, 3)
        assert (await client.get("/v1/pools/eval")).status_code == 404
        assert (await client.delete("/v1/pools/eval")).status_code == 404


@in_cluster(lease_ttl_s=1.5)
async def test_a_lease_that_nobody_renews_ends(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client, workers(cluster, "a", "b") as (_, b):
        await served(queue, 2)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        await until(lambda: b.pools == ["default", "eval"])
        for _ in range(4):
            await asyncio.sleep(0.5)
            assert (await client.post("/v1/pools/eval/renew")).status_code == 200
        assert b.pools == ["default", "eval"]
        await until(lambda: b.pools == ["default", "eval", "default"])
        assert (await client.post("/v1/pools/eval/renew")).status_code == 404
        await until(lambda: not queue.pools.workers.alive("eval"))
        # Its entry may still be known: the bucket drops it without telling.
        queue.pools.leases = {"eval": Lease("eval", "default", {"default": 1}, {}, 0, 0.0, time.time() - 4)}
        with pytest.raises(Unreachable, match="pool eval has no worker"):
            queue.pools.chosen({POOL: "eval"})


@in_cluster()
async def test_leases_that_ended_long_ago_are_forgotten(cluster):
    queue, now = await cluster.gateway(), time.time()
    await until(queue.leases.bucket.are_known.is_set)
    for name, renewed_at in (("old", now - 1e5), ("new", now)):
        await queue.leases.bucket.write(name, Lease(name, "default", {"l4": 1}, {}, 0, 0.0, renewed_at).packed())
    await until(lambda: [*queue.pools.leases] == ["new"])


@in_cluster()
async def test_a_renewal_brings_no_lease_back_that_another_gateway_has_ended(cluster, monkeypatch):
    settings, one, other = cluster.settings(), await cluster.gateway(), await cluster.gateway()
    async with http(one, settings) as client, http(other, settings) as others:
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"l4": 1}})
        await until(lambda: "eval" in other.pools.leases)
        monkeypatch.setattr(other.leases.bucket, "_take", lambda *_: None)  # its news are late
        assert (await client.delete("/v1/pools/eval")).status_code == 200
        monkeypatch.undo()
        assert (await others.post("/v1/pools/eval/renew")).status_code == 404
        await until(lambda: "eval" not in other.pools.leases)
        assert (await client.get("/v1/pools/eval")).status_code == 404


@in_cluster()
async def test_a_lease_that_has_just_ended_can_be_made_again_once_its_workers_have_left(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client, workers(cluster, "a", "b"):
        await served(queue, 2)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        await until(lambda: bool(queue.pools.workers.alive("eval")))
        await client.delete("/v1/pools/eval")
        answer = await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        while answer.status_code == 503:
            await asyncio.sleep(0.05)
            answer = await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        assert answer.status_code == 201


@in_cluster()
async def test_requests_that_a_moving_worker_holds_are_answered(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client, workers(cluster, "a", "b") as (a, b):
        await served(queue, 2)
        may_end = a.triton.hold()
        b.triton.behave = a.triton.behave
        asking = [asyncio.create_task(queue.submit("default", MODEL, request(f"{i}"), 30)) for i in range(20)]
        await until(lambda: a.triton.seen or b.triton.seen)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        await until(lambda: b.sidecar.should_move.is_set() or b.pools[-1] == "eval")
        may_end.set()
        assert [answer.status for answer, _ in await asyncio.gather(*asking)] == [0] * 20
        await until(lambda: b.pools == ["default", "eval"])


@in_cluster()
async def test_requests_for_a_pool_without_workers_yet_are_told_to_wait(cluster):
    settings = cluster.settings()
    queue = await cluster.gateway(gateway_configured_gpus="l4,h100")
    await cluster.worker("w")
    await served(queue)
    async with http(queue, settings) as client:
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"l4": 2}})
        assert await state(client) == "pending"
        for headers in ({POOL: "eval"}, {PROFILE: "h100"}, {POOL: "default", PROFILE: "l4"}):
            with pytest.raises(Provisioning):
                queue.pools.chosen(headers)
            found = await client.post("/v1/encode/t/m", json={"items": [{"text": "a"}]}, headers=headers)
            assert (found.status_code, found.json()["detail"]["code"]) == (503, "PROVISIONING")
            assert int(found.headers["Retry-After"]) > 0
        with pytest.raises(Unreachable, match="b200"):
            queue.pools.chosen({PROFILE: "b200"})


WRONG = [
    ({}, "name"),
    ({"name": "a b", "gpus": {"l4": 1}}, "name"),
    ({"name": "*", "gpus": {"l4": 1}}, "name"),
    ({"name": "default", "gpus": {"l4": 1}}, "name"),
    ({"name": "a"}, "gpus"),
    ({"name": "a", "gpus": ["l4"]}, "gpus"),
    ({"name": "a", "gpus": {"l4": 0}}, "gpus"),
    ({"name": "a", "gpus": {"l4": True}}, "gpus"),
    ({"name": "a", "gpus": {"l4": 1001}}, "gpus"),
    ({"name": "a", "gpus": {"l.4": 1}}, "gpus"),
    ({"name": "a", "gpus": {f"k{i}": 1 for i in range(21)}}, "gpus"),
    ({"name": "a", "gpus": {"l4": 1}, "gpu_caps": {"l4": "x"}}, "gpu_caps"),
    ({"name": "a", "gpus": {"l4": 1}, "queue_pool": 7}, "queue_pool"),
    ({"name": "a", "gpus": {"l4": 1}, "minimum_worker_count": -1}, "minimum_worker_count"),
    ({"name": "a", "gpus": {"l4": 1}, "pinned_models": ["org/m"]}, "'pinned_models'"),
    ({"name": "a", "gpus": {"l4": 1}, "ttl_seconds": 60}, "'ttl_seconds'"),
    ({"name": "a", "gpus": {"l4": 1}, "bundle": "other"}, "bundle"),
    ({"name": "a", "gpus": {"l4": 1}, "bundle": ["default"]}, "bundle"),
]


@in_cluster()
async def test_a_lease_may_name_the_bundle_of_its_gateway(cluster):
    """As the example of SIE's SDK does: create_pool("eval", {"l4": 2}, bundle="default", minimum_worker_count=1)."""
    settings, queue = cluster.settings(bundle="eu"), await cluster.gateway(bundle="eu")
    lease = {"name": "eval", "gpus": {"l4": 2}, "bundle": "eu", "minimum_worker_count": 1}
    async with http(queue, settings) as client:
        answer = await client.post("/v1/pools", json=lease)
        assert (answer.status_code, answer.json()["spec"]["bundle"]) == (201, "eu")
        refused = await client.post("/v1/pools", json=lease | {"bundle": "default"})
        assert refused.status_code == 400
        assert {"'default'", "'eu'"} <= set(refused.json()["detail"]["message"].replace(",", "").split())


@in_cluster()
async def test_a_wrong_lease_is_refused_by_its_field(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client:
        for body, field in WRONG:
            answer = await client.post("/v1/pools", json=body)
            assert answer.status_code == 400, body
            assert answer.json()["detail"]["message"].startswith(f"{field}: "), answer.text
        assert (await client.get("/v1/pools")).json() == {"pools": []}


@in_cluster(max_leases=2)
async def test_who_leases_a_pool_again_changes_and_renews_it_also_if_there_is_no_room_for_another(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    async with http(queue, settings) as client:
        first, other, refused, again = [
            await client.post("/v1/pools", json={"name": name, "gpus": {"l4": number}})
            for number, name in enumerate(("a", "b", "c", "a"), 1)
        ]
        assert [each.status_code for each in (first, other, refused, again)] == [201, 201, 503, 201]
        assert again.json()["spec"]["gpus"] == {"l4": 4}
        before, after = first.json()["status"], again.json()["status"]
        assert after["created_at"] == before["created_at"]
        assert after["last_renewed"] > before["last_renewed"]
        await client.delete("/v1/pools/a")
        assert (await client.post("/v1/pools", json={"name": "c", "gpus": {"l4": 1}})).status_code == 201


@in_cluster()
async def test_only_the_admin_may_lease_where_there_are_tokens(cluster):
    settings = cluster.settings(auth_mode="token", auth_tokens="client", admin_token="admin")
    queue, lease = await cluster.gateway(), {"name": "eval", "gpus": {"l4": 1}}
    async with http(queue, settings, "client") as client, http(queue, settings, "admin") as admin:
        assert (await client.post("/v1/pools", json=lease)).status_code == 401
        assert (await admin.post("/v1/pools", json=lease)).status_code == 201
        assert (await client.get("/v1/pools")).status_code == 200
        for path, method in (("/v1/pools/eval", "DELETE"), ("/v1/pools/eval/renew", "POST")):
            assert (await client.request(method, path)).status_code == 401


@in_cluster(streams_look_s=0.1, pool_unused_s=0.5)
async def test_the_queue_of_a_pool_that_nobody_uses_is_removed(cluster):
    settings, queue = cluster.settings(), await cluster.gateway()
    operator = await cluster.operator()

    async def streams() -> set[str]:
        return {info.config.name.removeprefix("SIE_WORK_") for info in await operator.streams_info()} - {"SIE_DEAD"}

    async with http(queue, settings) as client, workers(cluster, "a", "b") as (_, b):
        await served(queue, 2)
        await client.post("/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        await until(lambda: b.pools == ["default", "eval"])
        while "eval" not in await streams():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.7)
        assert "KV_SIE_CLAIMS_eval" in await streams()
        await client.delete("/v1/pools/eval")
        while {"eval", "KV_SIE_CLAIMS_eval"} & await streams():
            await asyncio.sleep(0.05)
        assert {"default", "KV_SIE_CLAIMS_default", "KV_SIE_LEASES"} <= await streams()
        assert (await queue.submit("default", MODEL, request("a"), 20))[0].status == 0
