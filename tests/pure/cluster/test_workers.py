"""Workers by their heartbeats, with a fake clock."""

import asyncio
from types import SimpleNamespace

import pytest

from sie_triton.cluster import workers as module
from sie_triton.cluster.messages import Health
from sie_triton.cluster.workers import MAX_MISSING, Workers
from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock) -> Workers:
    """Workers with a heartbeat every 2 seconds."""
    return Workers(clock)


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


def test_a_worker_is_gone_after_three_missing_heartbeats(workers, clock):
    workers.take(health("a"))
    clock.now += 2.0 * MAX_MISSING
    assert names(workers) == ["a"]
    clock.now += 0.1
    assert names(workers) == []


def test_each_worker_has_its_own_interval(workers, clock):
    workers.take(health("slow", interval_s=60.0))
    workers.take(health("quick"))
    assert workers.stale_s == 60.0 * MAX_MISSING
    clock.now += 2.0 * MAX_MISSING + 0.1
    assert names(workers) == ["slow"]


def test_each_heartbeat_counts_anew(workers, clock):
    workers.take(health("a"))
    workers.take(health("b"))
    clock.now += 5
    workers.take(health("a"))
    clock.now += 5
    assert names(workers) == ["a"]


def test_a_worker_can_come_back(workers, clock):
    workers.take(health("a"))
    clock.now += 100
    assert names(workers) == []
    workers.take(health("a"))
    assert names(workers) == ["a"]


def test_the_latest_heartbeat_counts(workers):
    for num_open in (1, 2, 3):
        workers.take(health("a", open=num_open))
    assert [each.open for each in workers.alive("p")] == [3]


def test_a_worker_that_is_not_ready_is_alive(workers):
    workers.take(health("a", is_ready=False))
    assert names(workers) == ["a"]


def test_workers_are_sorted_by_name(workers):
    for name in "cab":
        workers.take(health(name))
    assert names(workers) == ["a", "b", "c"]


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


def test_beyond_the_limit_known_workers_are_still_heard(workers, clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_WORKERS", 2)
    for name in "abc":
        workers.take(health(name))
    workers.take(health("a", open=7))
    assert [(each.worker, each.open) for each in workers.alive("p")] == [("a", 7), ("b", 0)]


def test_a_worker_that_is_gone_makes_room_for_another(workers, clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_WORKERS", 1)
    workers.take(health("a"))
    clock.now += 100
    assert names(workers) == []
    workers.take(health("b"))
    assert names(workers) == ["b"]
