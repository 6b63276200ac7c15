"""Each part of a cluster has a user in NATS, which may use its own subjects only."""

import asyncio
import time

import pytest
from nats.errors import NoServersError

from sie_triton.cluster import subjects
from sie_triton.cluster.connection import connect
from sie_triton.cluster.messages import Work
from sie_triton.cluster.permissions import CONFIG, GATEWAY, PASSWORDS, SIDECAR, inbox, nats_users
from tests.process.cluster.conftest import MODEL, Cluster, asked, request, until

FORBIDDEN = [
    (GATEWAY, "sie.answer.g"),
    (GATEWAY, "sie.health.default.w"),
    (GATEWAY, "sie.dead.default.m"),
    (GATEWAY, f"$JS.API.CONSUMER.MSG.NEXT.SIE_WORK_default.{MODEL}"),
    (GATEWAY, "$JS.API.STREAM.PURGE.SIE_WORK_default"),
    (SIDECAR, "sie.wanted.default"),
    (SIDECAR, "sie.cancel.default"),
    (SIDECAR, "sie.gateway.g"),
    (SIDECAR, "$JS.API.STREAM.DELETE.SIE_WORK_default"),
    (SIDECAR, "$JS.API.STREAM.PURGE.SIE_WORK_default"),
    (SIDECAR, f"{inbox(SIDECAR)}.x"),
    *(
        (user, subject)
        for user in (GATEWAY, SIDECAR)
        for subject in (
            "$KV.SIE_MODEL_FILES.=.m",
            "$JS.API.STREAM.CREATE.KV_SIE_MODEL_FILES",
            "$JS.API.STREAM.UPDATE.KV_SIE_MODEL_FILES",
            "$JS.API.STREAM.MSG.DELETE.KV_SIE_MODEL_FILES",
        )
    ),
    (GATEWAY, "$JS.API.STREAM.DELETE.KV_SIE_MODEL_FILES"),
    (GATEWAY, "$JS.API.STREAM.DELETE.SIE_DEAD"),
    (SIDECAR, "$KV.SIE_LEASES.eval"),
    (SIDECAR, "$JS.API.STREAM.UPDATE.KV_SIE_LEASES"),
    (CONFIG, "$KV.SIE_LEASES.eval"),
    (CONFIG, "sie.work.default.m"),
    (CONFIG, "sie.health.default.w"),
    (CONFIG, "$KV.SIE_CLAIMS_default.m"),
    (CONFIG, "$JS.API.STREAM.UPDATE.SIE_WORK_default"),
    (CONFIG, "$JS.API.STREAM.DELETE.KV_SIE_MODEL_FILES"),
]
UNHEARD = [
    (GATEWAY, "sie.work.>"),
    (GATEWAY, f"{inbox(SIDECAR)}.>"),
    (SIDECAR, "sie.answer.>"),
    (SIDECAR, "sie.work.>"),
    (SIDECAR, f"{inbox(GATEWAY)}.>"),
    (CONFIG, "sie.work.>"),
    (CONFIG, "sie.answer.>"),
]


async def errors_of(cluster: Cluster, user: str, act) -> list[str]:
    """Return what NATS says to a user after `act` with its connection."""
    said = []

    async def hear(error: Exception) -> None:
        said.append(str(error))

    client = await connect(cluster.server.user(cluster.settings(), user), user, "x")
    client._error_cb = hear
    await act(client)
    await until(lambda: said)
    await client.close()
    return said


@pytest.mark.parametrize(("user", "subject"), FORBIDDEN)
def test_a_user_cannot_publish_to_the_subjects_of_others(run, user, subject):
    async def test(cluster: Cluster) -> None:
        said = await errors_of(cluster, user, lambda client: client.publish(subject, b"x"))
        assert "permissions violation for publish" in said[0].lower()

    run(test)


@pytest.mark.parametrize(("user", "subject"), UNHEARD)
def test_a_user_cannot_hear_the_subjects_of_others(run, user, subject):
    async def test(cluster: Cluster) -> None:
        said = await errors_of(cluster, user, lambda client: client.subscribe(subject))
        assert "permissions violation for subscription" in said[0].lower()

    run(test)


def test_a_wrong_password_is_refused(run):
    async def test(cluster: Cluster) -> None:
        settings = cluster.server.user(cluster.settings(), GATEWAY).model_copy(update={"nats_password": "wrong"})
        with pytest.raises((TimeoutError, NoServersError)):
            await asyncio.wait_for(connect(settings, GATEWAY, "x"), 1)

    run(test)


def test_a_name_with_a_wildcard_becomes_no_subject(run):
    async def test(cluster: Cluster) -> None:
        queue, _, _ = await cluster.pair()
        for name in ("*", ">", "t.>", "a b", "sie.work.>", "", "m" * 300):
            assert queue.pools.is_served("default", name) is False
            with pytest.raises(Exception, match="is not a model's name"):
                await queue.submit("default", name, request("a"), 1)
        assert await asked(queue, "a") == "a"

    run(test)


def test_a_work_that_no_gateway_can_have_written_is_dropped(run):
    async def test(cluster: Cluster) -> None:
        queue, _, triton = await cluster.pair()
        for data in (b"", b"junk", Work("g", 1, time.time(), "m").packed()[:-3]):
            await queue._js.publish(subjects.work("default", MODEL), data)
        assert await asked(queue, "a") == "a"
        assert triton.seen == ["a"]

    run(test)


def test_passwords_are_no_part_of_the_configuration():
    text = nats_users()
    assert all(f"password: ${variable}" in text for variable in PASSWORDS.values())
