"""The config service gives model files to the workers; their servers are doubles, NATS is real."""

import asyncio
from http import HTTPStatus

import aiohttp
import pytest

from sie_triton.errors import Unreachable
from tests.process.cluster.changes import MODELS, A, B, posted, refused
from tests.process.cluster.conftest import MODEL, asked, in_cluster, model_file, request, until, until_empty


@in_cluster()
async def test_a_file_comes_to_all_workers_present_and_future(cluster):
    queue = await cluster.gateway()
    await cluster.worker("one")
    service, client = await cluster.config()
    assert await posted(client, A) == (201, 1)
    assert await posted(client, A) == (200, 1)
    await until(lambda: cluster.servers["one"].added == {"t__a": A})
    await cluster.worker("two")
    await until(lambda: cluster.servers["two"].added == {"t__a": A})
    await until(lambda: {each.epoch for each in service.workers.all()} == {1})
    assert len(list(service.workers.all())) == 2
    await until(lambda: queue.model_files.epoch == 1)


@in_cluster()
async def test_a_changed_file_replaces_the_former_one_and_a_removed_one_is_removed(cluster):
    await cluster.worker("one")
    _, client = await cluster.config()
    server, later = cluster.servers["one"], model_file("t/a", "/models/other")
    await posted(client, A)
    assert await posted(client, later) == (201, 2)
    await until(lambda: server.added == {"t__a": later})
    removed = await client.delete(f"{MODELS}/t/a")
    assert (removed.status, (await removed.json())["epoch"]) == (201, 3)
    await until(lambda: server.added == {})
    assert (await refused(client, "DELETE", f"{MODELS}/t/a"))[0] == HTTPStatus.NOT_FOUND
    assert await posted(client, A) == (201, 4)
    await until(lambda: server.added == {"t__a": A})
    await posted(client, model_file("t/own"))  # which the worker has by itself
    await client.delete(f"{MODELS}/t/own")
    await until(lambda: "t__own" not in server.found().served)


@in_cluster(removed_s=0.2)
async def test_requests_for_a_removed_model_do_not_wait_for_their_deadline(cluster):
    """Here no worker has ever served it, as none does once all have removed it."""
    queue, _, _ = await cluster.pair()
    _, client = await cluster.config()
    await posted(client, A)
    waiting = [asyncio.create_task(queue.submit("default", name, request("x", name), 30)) for name in ("t__a", "t__b")]
    await until(lambda: queue.num_waiting == 2)
    await client.delete(f"{MODELS}/t/a")
    answer, body = await waiting[0]
    assert (answer.status, answer.text, body) == (5, "Request for unknown model: 't__a' is not found", b"")
    waiting[1].cancel()
    await until_empty(queue)


@in_cluster(removed_s=0.2)
async def test_a_request_that_a_worker_has_when_its_model_is_removed_is_answered(cluster):
    queue, _, triton = await cluster.pair()
    _, client = await cluster.config()
    may_answer = triton.hold()
    await posted(client, model_file(MODEL.replace("__", "/")))
    waiting = asyncio.create_task(asked(queue, "x"))
    await until(lambda: triton.seen == ["x"])
    await client.delete(f"{MODELS}/t/m")
    await until(lambda: any(file.is_removed for file in queue.model_files.values.values()))
    assert not queue.pools.is_removed("default", MODEL)  # its worker still serves it
    may_answer.set()
    assert await waiting == "x"


@in_cluster()
async def test_a_file_for_a_pool_has_precedence_there_only(cluster):
    await cluster.worker("here", pool="here")
    await cluster.worker("there", pool="there")
    _, client = await cluster.config()
    special = model_file("t/a", "/models/special")
    await posted(client, A)
    await posted(client, special, params={"pool": "here"})
    await posted(client, B, params={"pool": "there"})
    here, there = cluster.servers["here"], cluster.servers["there"]
    await until(lambda: here.added == {"t__a": special} and there.added == {"t__a": A, "t__b": B})
    await client.delete(f"{MODELS}/t/a", params={"pool": "here"})
    await until(lambda: here.added == {"t__a": A})


@in_cluster()
async def test_a_file_that_a_server_refuses_holds_up_no_other_one_and_is_told(cluster):
    _, client = await cluster.config()
    await cluster.worker("one")
    server = cluster.servers["one"]
    server.answers[A] = (400, "weights_path: /models/m does not exist")
    await posted(client, A)
    await posted(client, B)
    await until(lambda: server.added == {"t__b": B})

    async def state(model: str) -> list[str]:
        told = await (await client.get(f"{MODELS}/{model}/status")).json()
        return [each["state"] for each in told["workers"]]

    while await state("t/a") != ["refused"] or await state("t/b") != ["served"]:
        await asyncio.sleep(0.05)
    epoch = await (await client.get("/v1/configs/epoch")).json()
    assert epoch["workers"] == [{"worker": "one", "pool": "default", "epoch": 2, "refused": ["t/a"]}]
    num = len(server.changes)
    await posted(client, model_file("t/c"))  # the refused one is not tried again for it
    await until(lambda: len(server.added) == 2)
    assert len(server.changes) == num + 1


@pytest.mark.parametrize("failure", [(503, "later"), aiohttp.ClientError("no connection")])
@in_cluster()
async def test_a_change_that_is_not_possible_now_is_made_later(cluster, failure):
    _, client = await cluster.config()
    await cluster.worker("one")
    server = cluster.servers["one"]
    server.answers[A] = failure
    await posted(client, A)
    await posted(client, B)
    await until(lambda: server.added == {"t__b": B} and len(server.changes) > 4)
    assert await (await client.get(f"{MODELS}/t/a/status")).json() == {
        "model": "t/a",
        "epoch": 1,
        "workers": [{"worker": "one", "pool": "default", "state": "behind"}],
    }
    server.answers.clear()
    await until(lambda: server.added == {"t__a": A, "t__b": B})


@in_cluster()
async def test_a_model_is_reported_once_all_its_ensembles_are_served(cluster, monkeypatch):
    """Triton loads the ensemble for scores last, and a look at its models may fall between."""
    queue, sidecar, triton = await cluster.pair()
    is_looking, is_added, names = asyncio.Event(), asyncio.Event(), [*await triton.names()]

    async def add(_: bytes) -> tuple[int, str]:
        triton.further.add("t__a")
        names.append("t__a")
        sidecar._look_at_names_soon()
        await is_looking.wait()
        names.append("t__a-score")
        return 200, ""

    async def seen() -> list[str]:
        found = [*names]
        if "t__a" in found:
            is_looking.set()
            await is_added.wait()
        return found

    monkeypatch.setattr(cluster.servers["w"], "add", add)
    monkeypatch.setattr(triton, "names", seen)
    applied = sidecar._files.when_applied

    def when_applied() -> None:
        applied()
        is_added.set()

    sidecar._files.when_applied = when_applied
    _, client = await cluster.config()
    await posted(client, A)
    await until(lambda: any("t__a" in each.models for each in queue.pools.workers.all()))
    assert [each.ensembles.count("t__a-score") for each in queue.pools.workers.all()] == [1]


@in_cluster()
async def test_a_gateway_knows_a_model_that_no_worker_has_yet(cluster):
    queue, _, _ = await cluster.pair()
    _, client = await cluster.config()
    await posted(client, A)
    await until(lambda: queue.model_files.epoch == 1)
    for name in ("t__a", "t__a-score"):
        with pytest.raises(Unreachable, match="has got the model file"):
            queue.pools.model_of("default", name)
    await client.delete(f"{MODELS}/t/a")
    await until(lambda: queue.model_files.epoch == 2)
    await until(lambda: queue.pools.model_of("default", "t__m") == "t__m")
    queue.pools.listen_anew()
    with pytest.raises(Unreachable, match="is known to serve"):
        queue.pools.model_of("default", "t__a")
