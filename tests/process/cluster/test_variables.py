"""Variables of SIE's clusters, set in the environment of a worker or a gateway, have the effect that SIE documents."""

import asyncio
import json
from collections import Counter
from time import monotonic

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.cluster import subjects
from sie_triton.cluster.connection import listen
from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.messages import Health
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.cluster.policies.quantum import WINDOW
from sie_triton.cluster.up import as_user
from tests.process.cluster.conftest import asked, in_cluster, model_file, request, until
from tests.process.cluster.test_model_files import posted

# Wait of a request for others, in seconds.
LONG_S = 0.5


async def seconds_of(queue) -> float:
    began = monotonic()
    await asked(queue, "timed")
    return monotonic() - began


@pytest.mark.parametrize("variable", ["SIE_BATCHER_COALESCE_MS", "SIE_ADAPTIVE_MIN_QUANTUM_MS"])
@in_cluster()
async def test_a_sidecar_waits_for_requests_to_join(cluster, monkeypatch, variable):
    monkeypatch.setenv(variable, str(LONG_S * 1000))
    queue, _, _ = await cluster.pair()
    assert await seconds_of(queue) >= LONG_S


@in_cluster()
async def test_the_wait_of_a_sidecar_grows_to_a_maximum_while_requests_wait_less_than_the_target(cluster, monkeypatch):
    monkeypatch.setenv("SIE_ADAPTIVE_MAX_QUANTUM_MS", str(LONG_S * 1000))

    queue, sidecar, _ = await cluster.pair()
    runner = sidecar._runner
    assert runner.pace.gather_s() == 0
    for _ in range(20 * WINDOW):
        runner.pace.quantum.add(1.0, False)
    assert runner.pace.gather_s() == LONG_S <= await seconds_of(queue)
    for _ in range(8 * WINDOW):
        runner.pace.quantum.add(60.0, False)
    assert runner.pace.gather_s() < LONG_S / 100


@pytest.mark.parametrize(("target", "is_lowered"), [("50", True), ("100", False)])
@in_cluster()
async def test_the_target_decides_how_much_a_sidecar_fetches(cluster, monkeypatch, target, is_lowered):
    monkeypatch.setenv("SIE_ADAPTIVE_TARGET_P50_MS", target)

    _, sidecar, _ = await cluster.pair()
    room = sidecar._runner.room
    for _ in range(WINDOW):
        sidecar._runner.pace.quantum.add(60.0, False)
    assert (sidecar._runner.room < room) == is_lowered


@in_cluster()
async def test_calls_of_a_triton_are_limited(cluster, monkeypatch):
    monkeypatch.setenv("SIE_MAX_CONCURRENT_BATCHES", "2")

    queue, _, triton = await cluster.pair(max_concurrent_batches=None)
    release = triton.hold()
    tasks = [asyncio.create_task(asked(queue, str(number))) for number in range(4)]
    await until(lambda: len(triton.seen) >= 2)
    await asyncio.sleep(0.2)
    assert len(triton.seen) == 2
    release.set()
    assert sorted(await asyncio.gather(*tasks)) == ["0", "1", "2", "3"]


@in_cluster()
async def test_a_worker_reports_its_name_pool_profile_and_number_of_gpus(cluster, monkeypatch):
    monkeypatch.setenv("SIE_POOL", "eu")
    monkeypatch.setenv("SIE_MACHINE_PROFILE", "l4-spot")
    monkeypatch.setenv("SIE_GPU_TYPE", "l4")
    monkeypatch.setenv("SIE_GPU_COUNT", "3")

    queue, _ = await cluster.gateway(), await cluster.worker("here")
    await until(lambda: any(each.is_ready for each in queue.pools.workers.alive("eu")))
    told = await QueueBackend(cluster.settings(), queue).capacity()
    (worker,) = told["workers"]
    assert (worker["name"], worker["pool"], worker["gpu"]) == ("here", "eu", "l4-spot")
    assert (worker["gpu_count"], told["cluster"]["gpu_count"]) == (3, 3)
    answer, _ = await queue.submit("eu", "t__m", request("a"), 20)
    assert answer.status == 0


@pytest.mark.parametrize(("gpu_type", "count"), [("", 0), ("l4", 1)])
@in_cluster()
async def test_without_the_variable_a_worker_has_the_gpu_of_its_type(cluster, gpu_type, count):
    queue, _, _ = await cluster.pair(gpu_type=gpu_type)
    told = await QueueBackend(cluster.settings(), queue).capacity()
    assert told["cluster"]["gpu_count"] == count


@in_cluster()
async def test_without_the_variable_a_worker_counts_the_gpus_of_its_server(cluster):
    queue, _, triton = await cluster.pair(gpu_type="l4")
    triton.devices = ["cuda:0", "cuda:1"]
    await until(lambda: [each.gpu_count for each in queue.pools.workers.alive("default")] == [2])


@in_cluster()
async def test_heartbeats_come_at_the_interval(cluster, monkeypatch):
    queue = await cluster.gateway()
    heard: Counter[str] = Counter()

    async def hear(message) -> None:
        heard[Health.read(message.data)[0].worker] += 1

    for interval_ms in ("100", "2000"):
        monkeypatch.setenv("SIE_HEALTH_PUBLISH_INTERVAL_MS", interval_ms)
        await cluster.worker(interval_ms, health_publish_interval_ms=None)
    await listen(queue._nats, subjects.ALL_WORKERS, hear)
    await until(lambda: heard["2000"] >= 2)
    assert heard["100"] > 3 * heard["2000"]


@in_cluster()
async def test_a_change_by_hand_is_undone_at_the_interval_of_the_full_export(cluster, monkeypatch):
    monkeypatch.setenv("SIE_WORKER_CONFIG_FULL_EXPORT_INTERVAL_MS", "100")
    file = model_file("t/a")

    _, client = await cluster.config()
    await cluster.worker("one")
    await cluster.worker("never", worker_config_full_export_interval_ms=0)
    await posted(client, file)
    one, never = cluster.servers["one"], cluster.servers["never"]
    await until(lambda: one.added == never.added == {"t__a": file})
    for server in (one, never):
        server.added.clear()
    await until(lambda: one.added == {"t__a": file})
    await asyncio.sleep(0.3)
    assert never.added == {}


@in_cluster()
async def test_the_wait_ends_once_as_many_requests_wait_as_one_call_may_have(cluster, monkeypatch):
    monkeypatch.setenv("SIE_BATCHER_MAX_BATCH_REQUESTS", "2")

    queue, sidecar, _ = await cluster.pair()
    sidecar._runner.pace.quantum.gather_ms = 600_000.0  # longer than a request lives
    assert await asyncio.gather(asked(queue, "a"), asked(queue, "b")) == ["a", "b"]


@in_cluster()
async def test_the_queue_is_at_its_address(cluster, monkeypatch, nats_server):
    monkeypatch.setenv("SIE_NATS_URL", nats_server.url)

    async with Queue(as_user(cluster.settings(), GATEWAY, nats_server.passwords)) as queue:
        assert queue._nats.is_connected


@in_cluster()
async def test_model_files_go_to_the_config_service_at_its_address(cluster, monkeypatch, tmp_path):
    path = tmp_path / "model.yaml"
    path.write_bytes(model_file("t/a"))
    monkeypatch.setenv("SIE_ADMIN_TOKEN", "admin")

    _, client = await cluster.config()
    monkeypatch.setenv("SIE_CONFIG_SERVICE_URL", str(client._base_url).rstrip("/"))
    await cluster.worker("one")
    told = await asyncio.to_thread(CliRunner().invoke, cli, ["cluster", "add", str(path)])
    assert told.exit_code == 0, told.output
    await until(lambda: "t__a" in cluster.servers["one"].added)


@in_cluster()
async def test_the_status_shows_the_workers_of_the_gateway_at_its_address(cluster, monkeypatch):
    queue, _, _ = await cluster.pair()
    backend = QueueBackend(cluster.settings(), queue)

    async def health(_: web.Request) -> web.Response:
        return web.json_response(await backend.capacity())

    app = web.Application()
    app.router.add_get("/health", health)
    async with TestServer(app) as server:
        monkeypatch.setenv("SIE_GATEWAY_URL", str(server.make_url("/")).rstrip("/"))
        told = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--json"])
    assert [each["name"] for each in json.loads(told.stdout)["workers"]] == ["w"]
