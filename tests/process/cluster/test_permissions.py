"""Each part of a cluster has a user in NATS, which may use its own subjects only."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoServersError
from nats.js.api import ConsumerConfig, DiscardPolicy, KeyValueConfig, RePublish, RetentionPolicy
from nats.js.errors import KeyNotFoundError, NotFoundError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import connect, listen
from sie_triton.cluster.messages import Question, Work
from sie_triton.cluster.model_files import ALL_POOLS, ModelFile, Version
from sie_triton.cluster.permissions import GATEWAY, PASSWORDS, SIDECAR, nats_users
from tests.process.cluster.conftest import MODEL, Cluster, asked, in_cluster, left_in_stream, model_file, request, until
from tests.support.nats_powers import POWERS, USERS, may_publish, may_subscribe, table

EVIL = ModelFile(Version("t/evil", ALL_POOLS, "sie-config", 0.0), model_file("t/evil")).packed()

PUBLISHED = sorted({subject for each in POWERS for subject in each.publish})
SUBSCRIBED = sorted({subject for each in POWERS for subject in each.subscribe})


async def connected(cluster: Cluster, user: str):
    """Return a connection of a user, and the list of what NATS has refused."""
    refused: list[str] = []

    async def hear(error: Exception) -> None:
        refused.append(str(error))

    client = await connect(cluster.server.user(cluster.settings(), user), user, "x")
    client._error_cb = hear
    return client, refused


@pytest.mark.parametrize("user", USERS)
@in_cluster()
async def test_nats_refuses_each_user_what_is_not_of_its_part(cluster, user):
    """And nothing else: the table in docs/security.md tells what nats-server does."""
    client, refused = await connected(cluster, user)
    for subject in PUBLISHED:
        await client.publish(subject, b"x")  # no request of the API: what is allowed changes nothing
    for subject in SUBSCRIBED:
        await client.subscribe(subject)
    await client.flush()
    publish = {f'publish to "{each.lower()}"' for each in PUBLISHED if not may_publish(user, each)}
    subscribe = {f'subscription to "{each.lower()}"' for each in SUBSCRIBED if not may_subscribe(user, each)}
    await until(lambda: len(refused) >= len(publish | subscribe))
    await client.close()
    assert {each.lower().partition("violation for ")[2] for each in refused} == publish | subscribe


def test_the_table_of_what_a_password_can_do_is_that_of_the_permissions():
    assert table() in (Path(__file__).parents[3] / "docs" / "security.md").read_text()


# Subjects with which a user can place bytes into streams, by the streams.
PLACES = {
    GATEWAY: {"KV_SIE_LEASES": "$KV.SIE_LEASES.evil", "SIE_WORK_default": "sie.work.default.evil"},
    SIDECAR: {
        "KV_SIE_CLAIMS_default": "$KV.SIE_CLAIMS_default.evil",
        "SIE_WORK_default": "sie.work.default.evil",
        "SIE_DEAD": "sie.dead.default.evil",
    },
}


async def ask(client: Client, *words: str, reply: str = "", **body: object) -> None:
    """Ask JetStream's API; `reply` is the subject to which NATS sends the answer."""
    data = json.dumps(body).encode() if body else b""
    await client.publish(".".join(("$JS.API", *words)), data, reply or client.new_inbox())


async def push_to(client: Client, stream: str, target: str) -> None:
    """Have a stream deliver its messages to a subject."""
    pushed = {"deliver_policy": "all", "replay_policy": "instant", "ack_policy": "none", "deliver_subject": target}
    await ask(client, "CONSUMER.CREATE", stream, stream_name=stream, config=pushed)


async def copy_to(client: Client, subjects_of: Mapping[str, str], target: str) -> None:
    """Try all that brings the messages of streams, to these subjects, to another subject."""
    for stream, subject in (*subjects_of.items(), ("SIE_WORK_evil", "sie.work.evil.m")):
        copied = {"republish": {"src": subject, "dest": target}}
        await ask(client, "STREAM.CREATE.SIE_WORK_evil", name="SIE_WORK_evil", subjects=["sie.work.evil.*"], **copied)
        await ask(client, "STREAM.CREATE.COPY", name="COPY", sources=[{"name": stream}], **copied)
        await ask(client, "STREAM.CREATE.MIRROR", name="MIRROR", mirror={"name": stream}, **copied)
        await ask(client, "STREAM.UPDATE", stream, name=stream, subjects=[subject], **copied)
        await ask(client, "DIRECT.GET", stream, subject, reply=target)
        await ask(client, "DIRECT.GET", stream, reply=target, last_by_subj=subject)
        await ask(client, "STREAM.MSG.GET", stream, reply=target, last_by_subj=subject)
        pulled = {"deliver_policy": "all", "replay_policy": "instant", "ack_policy": "explicit", "name": "pull"}
        pulled |= {"durable_name": "pull", "filter_subject": subject}
        await push_to(client, stream, target)
        await ask(client, "CONSUMER.DURABLE.CREATE", stream, "pull", stream_name=stream, config=pulled)
        await ask(client, "CONSUMER.CREATE", stream, "pull", subject, stream_name=stream, config=pulled)
        await ask(client, "CONSUMER.MSG.NEXT", stream, "pull", reply=target, batch=9, no_wait=True)
        await client.publish(f"$JS.ACK.{stream}.pull.1.1.1.1.0", b"+NXT", target)
        await client.publish(subject, EVIL)


@pytest.mark.parametrize("user", [GATEWAY, SIDECAR])
@in_cluster()
async def test_a_password_of_another_part_brings_no_model_file_to_a_worker(cluster, user):
    _, config = await cluster.config()
    await cluster.pair(worker_config_poll_interval_ms=200)  # deliveries of others may have news pass by
    operator = await cluster.operator()
    while len(followers := await operator.consumers_info("KV_SIE_MODEL_FILES")) < 3:
        await asyncio.sleep(0.02)
    inboxes = {each.config.deliver_subject for each in followers}
    client, _ = await connected(cluster, user)
    bucket, subject = next(iter(PLACES[user].items()))
    await client.publish(subject, EVIL)
    for inbox in inboxes:
        await push_to(client, bucket, inbox)
    while inboxes - {
        each.config.deliver_subject for each in await operator.consumers_info(bucket) if each.delivered.consumer_seq
    }:
        await asyncio.sleep(0.02)
    await copy_to(client, PLACES[user], "$KV.SIE_MODEL_FILES.=.t__evil")
    await client.flush()
    await client.close()
    file = model_file("t/a")
    assert (await config.post("/v1/configs/models", data=file)).status == HTTPStatus.CREATED
    await until(lambda: "t__a" in cluster.servers["w"].added)
    assert cluster.servers["w"].added == {"t__a": file}
    assert {"SIE_WORK_evil", "COPY", "MIRROR"}.isdisjoint(each.config.name for each in await operator.streams_info())


@in_cluster()
async def test_a_gateways_password_reads_no_request_in_the_queue(cluster):
    queue = await cluster.gateway()
    secret = asyncio.create_task(queue.submit("default", "secret", b"secret", 30))
    while not await left_in_stream(queue):
        await asyncio.sleep(0.02)
    operator = await cluster.operator()
    consumer = ConsumerConfig(durable_name="pull", filter_subject="sie.work.default.secret", ack_policy="explicit")
    await operator.add_consumer("SIE_WORK_default", consumer)
    client, _ = await connected(cluster, GATEWAY)
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=hear)
    await copy_to(client, {"SIE_WORK_default": "sie.work.default.secret"}, inbox)
    await client.publish("$JS.API.STREAM.INFO.SIE_WORK_default", b"", inbox)
    await until(lambda: any(b"stream_info_response" in each for each in heard))
    assert not [each for each in heard if b"secret" in each or b"c2VjcmV0" in each]
    info = await operator.consumer_info("SIE_WORK_default", "pull")
    assert info.num_ack_pending == 0
    secret.cancel()
    await client.close()


@in_cluster()
async def test_parts_drop_what_a_stream_delivers_to_their_subjects_and_answer_at_inboxes_only(cluster):
    await cluster.pair()
    operator, heard = await cluster.operator(), []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    await listen(operator._nc, "sie.answer.g", hear)
    client, _ = await connected(cluster, GATEWAY)
    await client.publish(PLACES[GATEWAY]["KV_SIE_LEASES"], EVIL)
    await push_to(client, "KV_SIE_LEASES", "sie.answer.g")
    while not any(each.delivered.consumer_seq for each in await operator.consumers_info("KV_SIE_LEASES")):
        await asyncio.sleep(0.02)
    question = Question("ServerMetadata").packed()
    await client.publish("sie.ask.default.w", question, "sie.answer.g")
    await client.request("sie.ask.default.w", question, timeout=10)
    await operator._nc.publish("sie.answer.g", b"an answer")
    await until(lambda: b"an answer" in heard)
    assert heard == [b"an answer"]
    await client.close()


@in_cluster()
async def test_what_permissions_of_nats_do_not_prevent(cluster):
    """If it is prevented one day, docs/security.md need not tell of it."""
    await cluster.config()
    await cluster.pair()
    operator = await cluster.operator()
    consumer = ConsumerConfig(durable_name="c", filter_subject="sie.work.default.c", ack_policy="explicit")
    await operator.add_consumer("SIE_WORK_default", consumer)
    client, _ = await connected(cluster, SIDECAR)
    reply = "$JS.API.STREAM.DELETE.KV_SIE_MODEL_FILES"
    await ask(client, "CONSUMER.MSG.NEXT.SIE_WORK_default.c", reply=reply, batch=1, no_wait=True)
    with suppress(NotFoundError):
        while await operator.stream_info("KV_SIE_MODEL_FILES"):
            await asyncio.sleep(0.02)
    await client.close()


@in_cluster()
async def test_streams_of_the_version_before_go_on_and_copy_nothing_any_more(cluster):
    """Their gateways and sidecars made them, and could make such that copy."""
    await cluster.streams._nats.close()  # there is no config service at first
    js, copied = (
        await cluster.operator(),
        RePublish(src="sie.work.default.zz", dest="$KV.SIE_MODEL_FILES.=.t__evil"),
    )
    await js.delete_stream("SIE_WORK_default")
    for bucket in ("SIE_LEASES", "SIE_CLAIMS_default"):
        await js.delete_key_value(bucket)
    work = {"retention": RetentionPolicy.WORK_QUEUE, "subjects": ["sie.work.default.*"], "republish": copied}
    await js.add_stream(name="SIE_WORK_default", discard=DiscardPolicy.NEW, max_msgs=100_000, max_age=3600, **work)
    for bucket in ("SIE_CLAIMS_default", "SIE_LEASES", "SIE_MODEL_FILES"):
        await js.create_key_value(KeyValueConfig(bucket=bucket, history=1 + 63 * (bucket == "SIE_MODEL_FILES")))
    await js.update_stream((await js.stream_info("KV_SIE_LEASES")).config.evolve(allow_direct=True))
    await js.add_stream(
        name="SIE_WORK_evil", subjects=["sie.work.evil.*"], republish=copied.evolve(src="sie.work.evil.m")
    )
    file = ModelFile(Version("t/a", ALL_POOLS, "sie-config", 0.0), model_file("t/a")).packed()
    await js.publish("$KV.SIE_MODEL_FILES.=.t__a", file)
    consumer = ConsumerConfig(durable_name=MODEL, filter_subject=subjects.work("default", MODEL), ack_policy="explicit")
    await js.add_consumer(
        "SIE_WORK_default", consumer.evolve(ack_wait=5, max_ack_pending=10_000, inactive_threshold=3600)
    )
    queue, _, _ = await cluster.pair()
    assert await asked(queue, "a") == "a"
    await until(lambda: "t__a" in cluster.servers["w"].added)
    await cluster.config()
    names, plain = {"SIE_WORK_default", "SIE_WORK_evil", "KV_SIE_LEASES"}, set[str]()
    while not names <= plain:
        configs = [each.config for each in await js.streams_info()]
        plain = {each.name or "" for each in configs if not each.republish and not each.allow_direct}
    client, _ = await connected(cluster, GATEWAY)
    for subject in ("sie.work.default.zz", "sie.work.evil.m"):
        await client.publish(subject, EVIL)
    await client.close()
    assert await asked(queue, "b") == "b"
    with pytest.raises(KeyNotFoundError):
        await (await js.key_value("SIE_MODEL_FILES")).get("=.t__evil")


@in_cluster()
async def test_a_wrong_password_is_refused(cluster):
    settings = cluster.server.user(cluster.settings(), GATEWAY).model_copy(update={"nats_password": "wrong"})
    with pytest.raises((TimeoutError, NoServersError)):
        await asyncio.wait_for(connect(settings, GATEWAY, "x"), 1)


@in_cluster()
async def test_a_password_of_a_file_changes_while_the_queue_runs(cluster, tmp_path):
    """The file must hold the new one before nats-server, which has it in its environment, is restarted."""
    path = tmp_path / "password"
    path.write_text(cluster.server.passwords[PASSWORDS[GATEWAY]])
    settings = cluster.server.user(cluster.settings(), GATEWAY)
    settings = settings.model_copy(update={"nats_password": f"@{path}"})
    again = asyncio.Event()

    async def reconnected() -> None:
        again.set()

    client = await connect(settings, GATEWAY, "x", reconnected)
    path.write_text("another")
    cluster.server.passwords[PASSWORDS[GATEWAY]] = "another"
    cluster.server.kill()
    cluster.server.start()
    await asyncio.wait_for(again.wait(), 20)
    await client.flush()
    await client.close()


@in_cluster()
async def test_a_name_with_a_wildcard_becomes_no_subject(cluster):
    queue, _, _ = await cluster.pair()
    for name in ("*", ">", "t.>", "a b", "sie.work.>", "", "m" * 300):
        assert queue.pools.is_served("default", name) is False
        with pytest.raises(Exception, match="is not a model's name"):
            await queue.submit("default", name, request("a"), 1)
    assert await asked(queue, "a") == "a"


@in_cluster()
async def test_a_work_that_no_gateway_can_have_written_is_dropped(cluster):
    queue, _, triton = await cluster.pair()
    for data in (b"", b"junk", Work("g", 1, time.time(), "m").packed()[:-3]):
        await queue._js.publish(subjects.work("default", MODEL), data)
    assert await asked(queue, "a") == "a"
    assert triton.seen == ["a"]


def test_passwords_are_no_part_of_the_configuration():
    text = nats_users()
    assert all(f"password: ${variable}" in text for variable in PASSWORDS.values())
