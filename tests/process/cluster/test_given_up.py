"""Requests for whose answers nobody waits any more are not computed, and those that cannot be taken are refused."""

import asyncio
import time

import pytest

from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Work
from sie_triton.errors import DeadlinePassed
from tests.process.cluster.conftest import (
    MODEL,
    asked,
    in_cluster,
    left_in_stream,
    request,
    served,
    until,
    until_empty,
)


@in_cluster()
async def test_a_request_without_workers_passes_its_deadline_and_leaves_the_queue(cluster):
    queue = await cluster.gateway()
    with pytest.raises(DeadlinePassed, match="not answered within 1 s"):
        await asked(queue, "a", seconds=1)
    await until_empty(queue)


@in_cluster()
async def test_clocks_of_machines_that_differ_or_jump_make_no_request_late(cluster, monkeypatch):
    """A worker goes by the clock that the gateway's heartbeat tells, and a gateway's clock goes on as it began."""
    seen = []

    queue, sidecar, triton = await cluster.pair()
    call = triton.call

    async def noted(method, request, seconds):
        seen.append(seconds)
        return await call(method, request, seconds)

    triton.call = noted
    await asked(queue, "a", seconds=40)
    await until(lambda: queue.name in sidecar._runner.gateways._heard)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 3600)
    await asked(queue, "b", seconds=40)
    assert 20 < seen[-1] < 60
    late = Work(queue.name, 10**6, queue._now() - 1, MODEL).packed(request("late"))
    await queue._js.publish(subjects.work("default", MODEL), late)
    await until_empty(queue)
    assert triton.seen == ["a", "b"]


@in_cluster(gateway_gone_s=0.5)
async def test_a_request_of_a_gateway_that_is_gone_is_not_run(cluster):
    queue, _, triton = await cluster.pair()
    await asked(queue, "a")
    await asyncio.sleep(0.6)
    orphan = Work("gone", 1, time.time() + 100, MODEL).packed(request("orphan"))
    await queue._js.publish(subjects.work("default", MODEL), orphan)
    await until_empty(queue)
    assert triton.seen == ["a"]


@in_cluster()
async def test_a_cancelled_request_leaves_the_queue_or_is_no_longer_computed(cluster):
    queue = await cluster.gateway()
    waiting = asyncio.create_task(asked(queue, "waiting"))
    while not await left_in_stream(queue):
        await asyncio.sleep(0.02)
    waiting.cancel()
    await until_empty(queue)
    sidecar, triton = await cluster.worker("w")
    await served(queue)
    gate = triton.hold()
    running = asyncio.create_task(asked(queue, "running"))
    await until(lambda: triton.seen == ["running"])
    (current,) = sidecar._runner._open.values()
    running.cancel()
    await until(lambda: current.was_withdrawn)
    gate.set()
    await until_empty(queue)


@in_cluster()
async def test_a_request_that_is_withdrawn_before_its_call_is_not_run(cluster):
    queue, sidecar, triton = await cluster.pair(max_concurrent_batches=1)
    may_end = triton.hold()
    first = asyncio.create_task(asked(queue, "first"))
    await until(lambda: triton.seen == ["first"])
    second, third = (asyncio.create_task(asked(queue, name)) for name in ("second", "third"))
    await until(lambda: sidecar._runner.num_open == 3)
    second.cancel()
    await until(lambda: sidecar._runner.num_open == 2)
    may_end.set()
    assert await asyncio.gather(first, third) == ["first", "third"]
    assert triton.seen == ["first", "third"]
    await until_empty(queue)
