"""Streams of a cluster, which config services make and keep: settings that change, errors, and no config service."""

import asyncio
import errno

import pytest

from sie_triton.cluster import subjects
from sie_triton.cluster.config.streams import Streams
from sie_triton.cluster.limits import ConfigLimits
from tests.process.cluster.conftest import in_cluster, until


@in_cluster(log_interval_s=3.0)
async def test_a_sidecar_without_a_config_service_says_so(cluster, caplog):
    await cluster.streams._nats.close()
    await (await cluster.operator()).delete_stream(subjects.stream("default"))
    starting = asyncio.create_task(cluster.worker("w"))
    await until(lambda: "no config service has made it" in caplog.text)
    running = [each.get_coro().__name__ for each in asyncio.all_tasks()]
    assert running.count("await_streams") == 1
    starting.cancel()


@in_cluster(restart_s=0.01)
async def test_a_config_service_listens_once_whatever_fails(cluster, monkeypatch):
    looks: list[Streams] = []

    async def look(streams: Streams) -> None:
        looks.append(streams)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Streams, "_look", look)
    service, _ = await cluster.config()
    await until(lambda: len(looks) > 3)
    subscribed = [each.subject for each in service._nats._subs.values()]
    assert subscribed.count(subjects.ALL_STREAMS) == 1


@in_cluster()
async def test_dead_letters_outlive_a_change_of_settings(cluster):
    js = await cluster.operator()
    await js.publish("sie.dead.default.m", b"a request")
    cluster.streams._limits = ConfigLimits(dead_age_s=3600.0)
    await cluster.streams._open_common()
    info = await js.stream_info(subjects.DEAD_STREAM)
    assert (info.state.messages, info.config.max_age) == (1, 3600.0)


@pytest.mark.parametrize("other", [{"retention": "workqueue"}, {"storage": "memory"}])
@in_cluster()
async def test_dead_letters_outlive_settings_that_cannot_be_changed(cluster, caplog, other):
    js = await cluster.operator()
    await js.delete_stream(subjects.DEAD_STREAM)
    await js.add_stream(name=subjects.DEAD_STREAM, subjects=[subjects.DEAD_SUBJECTS], **other)
    await js.publish("sie.dead.default.m", b"a request")
    await cluster.streams._open_common()
    assert (await js.stream_info(subjects.DEAD_STREAM)).state.messages == 1
    assert f"stream {subjects.DEAD_STREAM} keeps its settings" in caplog.text
