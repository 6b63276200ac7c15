"""What a process knows of a bucket is what is in it, whatever got lost on the way."""

import asyncio
from dataclasses import replace

import pytest
from nats.js.api import KeyValueConfig

from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.limits import ClusterLimits
from tests.process.cluster.conftest import Cluster, in_cluster, until

NAME = "TEST"


async def made(cluster: Cluster, **more):
    """Return a bucket that is followed, NATS' own view of it, and what the bucket has told of changes."""
    js, told = await cluster.operator(), []

    async def opened():
        return await js.create_key_value(KeyValueConfig(bucket=NAME))

    limits = replace(cluster.limits(ClusterLimits), bucket_listen_s=0.05)
    bucket = Bucket(opened, bytes.decode, when_changed=lambda *change: told.append(change), limits=limits, **more)
    task = asyncio.create_task(bucket.watch())
    cluster.tasks.append(task)
    await bucket.are_known.wait()
    return bucket, await js.key_value(NAME), told


@in_cluster()
async def test_changes_of_others_and_own_ones_are_known(cluster):
    bucket, others, told = await made(cluster)
    assert await bucket.write("a", b"1") == 1
    assert (dict(bucket.values), bucket.epoch, bucket.revision("a")) == ({"a": "1"}, 1, 1)
    await others.put("b", b"2")
    await until(lambda: bucket.values.get("b") == "2")
    await others.delete("a")
    await until(lambda: "a" not in bucket.values)
    assert told == [("a", "1", 1), ("b", "2", 2), ("a", None, 3)]


@in_cluster()
async def test_a_write_over_what_is_not_known_is_a_conflict_that_teaches(cluster):
    bucket, others, _ = await made(cluster)
    bucket._take = lambda *_, take=bucket._take: None  # no news arrive
    await others.put("a", b"theirs")
    await asyncio.sleep(0.1)
    del bucket._take
    with pytest.raises(Conflict):
        await bucket.write("a", b"ours")
    assert bucket.values["a"] == "theirs"
    assert await bucket.write("a", b"ours") == 2


@in_cluster()
async def test_news_that_come_late_replace_nothing_newer(cluster):
    bucket, _, told = await made(cluster)
    await bucket.write("a", b"1")
    await bucket.write("a", b"2")
    bucket._take("a", b"1", 1)
    assert (bucket.values["a"], bucket.epoch) == ("2", 2)
    assert told == [("a", "1", 1), ("a", "2", 2)]


@in_cluster()
async def test_a_bucket_that_was_made_anew_has_nothing_of_the_old_one(cluster):
    bucket, _, told = await made(cluster, poll_s=0.1)
    for name in ("a", "b"):
        await bucket.write(name, b"old")
    await cluster.js.delete_key_value(NAME)
    anew = await cluster.js.create_key_value(KeyValueConfig(bucket=NAME))
    for value in (b"1", b"2", b"3"):  # as many changes as there were
        await anew.put("c", value)
    await until(lambda: dict(bucket.values) == {"c": "3"})
    assert {("a", None, 0), ("b", None, 0)} <= set(told)
    assert await bucket.write("a", b"new") == 4


@in_cluster()
async def test_a_bucket_that_nobody_has_made_is_empty_until_it_is(cluster):
    js = await cluster.operator()
    bucket = Bucket(lambda: js.key_value(NAME), bytes.decode, limits=cluster.limits(ClusterLimits))
    cluster.tasks.append(asyncio.create_task(bucket.watch()))
    await bucket.are_known.wait()
    assert (dict(bucket.values), bucket.epoch) == ({}, 0)
    await (await js.create_key_value(KeyValueConfig(bucket=NAME))).put("a", b"1")
    await until(lambda: dict(bucket.values) == {"a": "1"})


@in_cluster()
async def test_after_an_outage_a_bucket_is_watched_anew(cluster):
    """A watch does not outlive its nats-server, which nats-py notices after 18 s only."""
    bucket, others, _ = await made(cluster, poll_s=1000)
    opened, open_bucket = [], bucket.open

    async def opening():
        await open_bucket()
        opened.append(True)

    bucket.open = opening
    cluster.server.kill()
    cluster.server.start()
    bucket.doubt()  # as after each reconnection
    async with asyncio.timeout(30):
        await until(lambda: opened)
        await others.put("a", b"1")
        await until(lambda: bucket.values.get("a") == "1")
