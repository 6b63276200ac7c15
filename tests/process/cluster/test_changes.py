"""Which changes of model files the config service makes, once each, and which it refuses; NATS is real."""

import asyncio
import shutil
from http import HTTPStatus

import pytest

from sie_triton.cluster import subjects
from sie_triton.cluster.model_files import Version
from tests.process.cluster.changes import MODELS, A, B, posted, refused
from tests.process.cluster.conftest import in_cluster, model_file, until


@in_cluster()
async def test_a_wrong_file_is_refused_by_its_field(cluster):
    _, client = await cluster.config()
    for text, field in (
        (b"", ""),
        (A.replace(b"t/a", b"t/a/../.."), "sie_id"),
        (A.replace(b"sentence_transformer", b"unittest.__main__:x"), "profiles.default: adapter_path"),
    ):
        status, message = await refused(client, "POST", MODELS, data=text)
        assert (status, field in message) == (400, True), message
    assert (await refused(client, "POST", MODELS, data=b"#" * (1024**2 + 1)))[0] == 413
    for name in ("*", "a.b", "x" * 65):
        assert (await refused(client, "POST", MODELS, data=A, params={"pool": name}))[0] == 400
    assert (await (await client.get("/v1/configs/epoch")).json())["epoch"] == 0


@in_cluster()
async def test_a_request_that_is_sent_again_changes_nothing(cluster):
    _, client = await cluster.config()
    first, later = {"Idempotency-Key": "1"}, model_file("t/a", "/models/later")
    assert await posted(client, A, headers=first) == (201, 1)
    assert await posted(client, later) == (201, 2)
    assert await posted(client, A, headers=first) == (200, 1)  # and not the first version again
    status, message = await refused(client, "POST", MODELS, data=B, headers=first)
    assert (status, "another change" in message) == (422, True)
    assert (await refused(client, "POST", MODELS, data=B, headers={"Idempotency-Key": "k" * 201}))[0] == 400
    _, after_restart = await cluster.config()
    assert await posted(after_restart, A, headers=first) == (200, 1)
    assert (await (await client.get(f"{MODELS}/t/a")).json())["file"] == later.decode()


@pytest.mark.parametrize("has_backup", [False, True])
@in_cluster(queue_s=0.5)
async def test_a_request_that_is_sent_again_is_done_again_after_the_queue_has_lost_it(cluster, has_backup):
    """The queue's disk is lost, or what a backup had is there again."""
    store, backup = cluster.server.store, cluster.server.store.with_name("backup")
    _, client = await cluster.config()
    await posted(client, A)
    cluster.server.kill()
    shutil.copytree(store, backup)
    cluster.server.start()
    key = {"Idempotency-Key": "one"}
    assert await again(client, B, key) == HTTPStatus.CREATED
    cluster.server.kill()
    shutil.rmtree(store)
    if has_backup:
        backup.rename(store)
    cluster.server.start()
    assert await again(client, B, key) == HTTPStatus.CREATED
    assert await again(client, B, key) == HTTPStatus.OK
    await cluster.worker("one")
    await until(lambda: cluster.servers["one"].added.get("t__b") == B)
    assert ("t__a" in cluster.servers["one"].added) == has_backup


async def again(client, text: bytes, headers: dict[str, str]) -> int:
    """Send a change until the queue takes it, and return HTTP's status."""
    while True:
        answer = await client.post(MODELS, data=text, headers=headers)
        if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
            return answer.status
        await asyncio.sleep(0.05)


@in_cluster()
async def test_who_names_the_version_to_replace_overwrites_no_other_one(cluster):
    _, client = await cluster.config()
    later = model_file("t/a", "/models/later")
    assert await posted(client, A, headers={"If-Match": "0"}) == (201, 1)
    assert await posted(client, later, headers={"If-Match": '"1"'}) == (201, 2)
    status, message = await refused(client, "POST", MODELS, data=A, headers={"If-Match": "1"})
    assert (status, message) == (409, "If-Match: the latest version of t/a is that of epoch 2")
    assert (await refused(client, "POST", MODELS, data=A, headers={"If-Match": "x"}))[0] == 400


@in_cluster()
async def test_two_config_services_lose_no_change(cluster):
    clients = [(await cluster.config())[1] for _ in range(2)]
    files = [model_file("t/a", f"/models/{i}") for i in range(20)]
    done = await asyncio.gather(*(posted(clients[i % 2], text) for i, text in enumerate(files)))
    assert sorted(epoch for _, epoch in done) == list(range(1, 21))
    exports = [await (await client.get("/v1/configs/export")).json() for client in clients]
    while exports[0] != exports[1]:
        exports = [await (await client.get("/v1/configs/export")).json() for client in clients]
    last = files[[epoch for _, epoch in done].index(20)]
    assert [each["file"] for each in exports[0]["models"]] == [last.decode()]


@in_cluster()
async def test_a_change_of_which_nobody_told_is_found_by_a_poll(cluster):
    _, client = await cluster.config()
    sidecar, _ = await cluster.worker("one", worker_config_poll_interval_ms=200)
    await posted(client, A)
    await until(lambda: cluster.servers["one"].added == {"t__a": A})
    take, lost = sidecar._files._bucket._take, []
    sidecar._files._bucket._take = lambda *given: lost.append(given)
    await posted(client, B)
    await until(lambda: lost)
    sidecar._files._bucket._take = take
    sidecar._files._bucket._watched = 1  # as if the news had never come
    await until(lambda: "t__b" in cluster.servers["one"].added)


@in_cluster()
async def test_changes_of_a_producer_that_is_not_trusted_are_ignored(cluster):
    trusted = "sie-config,second"
    await cluster.worker("one", nats_config_trusted_producers=trusted)
    _, client = await cluster.config()
    _, second = await cluster.config(config_producer="second", nats_config_trusted_producers=trusted)
    _, third = await cluster.config(config_producer="third")
    await posted(third, model_file("t/c"))
    await posted(second, B)
    await posted(client, A)
    await until(lambda: set(cluster.servers["one"].added) == {"t__a", "t__b"})


@in_cluster()
async def test_what_is_no_version_of_a_file_is_ignored(cluster):
    _, client = await cluster.config()
    await cluster.worker("one")
    files = await (await cluster.operator()).key_value(subjects.MODEL_FILES)
    for number, value in enumerate((b"", b"junk", Version("t/x", "", "sie-config", 1.0).packed()[:-3])):
        await files.put(f"=.x{number}", value)
    await posted(client, A)
    await until(lambda: cluster.servers["one"].added == {"t__a": A})


@in_cluster()
async def test_changes_and_the_export_need_the_admin_token_and_reads_one_of_the_clients(cluster):
    _, client = await cluster.config(auth_mode="token", auth_tokens="reader")
    await posted(client, A)
    reads = ("/v1/configs/epoch", MODELS, f"{MODELS}/t/a", f"{MODELS}/t/a/status")
    changes = (("POST", MODELS), ("DELETE", f"{MODELS}/t/a"), ("GET", "/v1/configs/export"))
    for token, may_read, may_change in (("", 401, 401), ("reader", 200, 401), ("wrong", 401, 401)):
        headers = {"Authorization": f"Bearer {token}"}
        for path in reads:
            assert (await client.get(path, headers=headers)).status == may_read
        for method, path in changes:
            assert (await client.request(method, path, headers=headers)).status == may_change
        assert (await client.get("/healthz", headers=headers)).status == 200
    assert (await client.get("/metrics")).status == 200


@in_cluster()
async def test_two_names_that_triton_could_not_tell_apart_are_refused(cluster):
    _, client = await cluster.config()
    await posted(client, A)
    status, message = await refused(client, "POST", MODELS, data=model_file("t__a"))
    assert (status, message) == (409, "sie_id: t__a has the same name in Triton as t/a")
    await client.delete(f"{MODELS}/t/a")
    assert await posted(client, model_file("t__a")) == (201, 3)


@in_cluster(max_files=2)
async def test_the_number_of_files_is_limited(cluster):
    _, client = await cluster.config()
    await posted(client, A)
    await posted(client, B)
    assert await refused(client, "POST", MODELS, data=model_file("t/c")) == (
        409,
        "a cluster has 2 model files at most",
    )
    assert await posted(client, model_file("t/a", "/models/other")) == (201, 3)
