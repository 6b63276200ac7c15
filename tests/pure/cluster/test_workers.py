"""Workers by their heartbeats, with a fake clock."""

import asyncio
from types import SimpleNamespace

import pytest

from sie_triton.cluster.limits import ClusterLimits
from sie_triton.cluster.messages import Health
from sie_triton.cluster.workers import Workers
from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock) -> Workers:
    """At most three workers, with a heartbeat every 2 seconds."""
    return Workers(ClusterLimits(max_workers=3), clock)


def health(worker, pool="p", **fields):
    of_all = {
        "is_ready": True,
        "models": ["m"],
        "ensembles": [],
        "resident": {},
        "free_bytes": 0,
        "open": 0,
        "limit": 9,
    }
    of_all["claims"] = of_all["refused"] = []
    of_all["interval_s"] = 2.0
    return Health(worker, pool, "", **{**of_all, **fields})


def names(workers, pool="p"):
    return [each.worker for each in workers.alive(pool)]


def hear(workers, data):
    asyncio.run(workers.hear(SimpleNamespace(data=data)))


def test_a_worker_is_alive_from_its_first_heartbeat(workers):
    assert names(workers) == []
    hear(workers, health("a").packed())
    assert workers.alive("p") == [health("a")]


def test_a_worker_is_gone_after_three_missing_heartbeats_and_can_come_back(workers, clock):
    workers.take(health("a"))
    workers.take(health("b", is_ready=False))
    clock.now += 5
    workers.take(health("a", open=2))
    clock.now += 6.0 - 5
    assert workers.alive("p") == [health("a", open=2), health("b", is_ready=False)]
    clock.now += 0.1
    assert names(workers) == ["a"]
    clock.now += 100
    assert names(workers) == []
    workers.take(health("a"))
    assert names(workers) == ["a"]


def test_each_worker_has_its_own_interval(workers, clock):
    workers.take(health("slow", interval_s=60.0))
    workers.take(health("quick"))
    assert workers.stale_s == 180.0
    clock.now += 6.0 + 0.1
    assert names(workers) == ["slow"]


def test_pools_do_not_mix(workers, clock):
    workers.take(health("a", "p"))
    clock.now += 4
    workers.take(health("a", "q"))
    workers.take(health("b", "q"))
    assert (names(workers, "p"), names(workers, "q")) == (["a"], ["a", "b"])
    assert names(workers, "r") == []
    assert workers.pools() == ["p", "q"]
    assert len(list(workers.all())) == 3
    clock.now += 4
    assert workers.pools() == ["q"]


@pytest.mark.parametrize(
    "data", [b"", b"\x05", b"\xff" * 40, health("a").packed()[:-1]], ids=["empty", "short", "random", "cut"]
)
def test_a_malformed_heartbeat_is_ignored(workers, data):
    workers.take(health("b"))
    hear(workers, data)
    assert names(workers) == ["b"]


def test_beyond_the_limit_known_workers_are_still_heard_and_one_that_is_gone_makes_room(workers, clock):
    for name in "bacd":
        workers.take(health(name))
    workers.take(health("a", open=7))
    assert [(each.worker, each.open) for each in workers.alive("p")] == [("a", 7), ("b", 0), ("c", 0)]
    clock.now += 100
    assert names(workers) == []
    workers.take(health("d"))
    assert names(workers) == ["d"]
