"""Which workers join a leased pool: decided by each of them, without a leader."""

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from sie_triton.cluster.messages import Health, Lease
from sie_triton.cluster.policies.leases import best_pool, limit

HOME = "home"


def worker(name: str, pool: str = HOME, profile: str = "l4", *, is_ready: bool = True) -> Health:
    return Health(name, pool, profile, is_ready, [], [], {}, 0, 0, 10)


def lease(name: str = "eval", gpus=None, caps=None, at: float = 0.0, source: str = HOME) -> Lease:
    return Lease(name, source, {"l4": 1} if gpus is None else gpus, caps or {}, 0, at, at)


def settled(workers: list[Health], leases: list[Lease], now: float = 1.0, homes=None) -> dict[str, str]:
    """Return the pools of all workers after each has decided again and again, all at once."""
    homes = homes or {each.worker: each.pool for each in workers}
    for _ in range(20):
        pools = [best_pool(each, homes[each.worker], leases, workers, now) for each in workers]
        moved = [replace(each, pool=pool) for each, pool in zip(workers, pools, strict=True)]
        if moved == workers:
            return {each.worker: each.pool for each in workers}
        workers = moved
    raise AssertionError("the workers do not settle")


def test_a_pool_keeps_its_last_worker():
    assert settled([worker("a"), worker("b")], [lease(gpus={"l4": 5})]) == {"a": HOME, "b": "eval"}
    assert settled([worker("a")], [lease()]) == {"a": HOME}
    # one that is not ready does not count
    assert settled([worker("a", is_ready=False), worker("b")], [lease()])["b"] == HOME


def test_caps_have_precedence_over_the_number_that_is_needed():
    assert limit(lease(gpus={"l4": 1}, caps={"l4": 3}), "l4") == 3
    pools = settled([worker(name) for name in "abcde"], [lease(gpus={"l4": 1}, caps={"l4": 3})])
    assert Counter(pools.values())["eval"] == 3


def test_the_older_lease_is_served_first():
    workers = [worker(name) for name in "abc"]
    leases = [lease("younger", {"l4": 2}, at=5.0), lease("older", {"l4": 1}, at=1.0)]
    assert Counter(settled(workers, leases, now=6.0).values()) == {HOME: 1, "older": 1, "younger": 1}


def test_all_return_at_the_end_of_a_lease():
    homes = dict.fromkeys("abc", HOME)
    workers = [worker("a"), worker("b", "eval"), worker("c", "eval")]
    assert set(settled(workers, [lease(gpus={"l4": 2})], 1201.0, homes).values()) == {HOME}
    assert set(settled(workers, [], 1.0, homes).values()) == {HOME}


def test_surplus_workers_return():
    homes = dict.fromkeys("abcd", HOME)
    workers = [worker("a"), worker("b", "eval"), worker("c", "eval"), worker("d", "eval")]
    assert settled(workers, [lease()], homes=homes) == {"a": HOME, "b": "eval", "c": HOME, "d": HOME}


def test_who_is_on_the_way_counts():
    on_the_way = replace(worker("b"), moves_to="eval", is_ready=False)
    assert best_pool(worker("c"), HOME, [lease()], [worker("a"), on_the_way], 1.0) == HOME


PROFILES = st.sampled_from(["l4", "h100"])
WORKERS = st.lists(PROFILES, min_size=1, max_size=8).map(
    lambda profiles: [worker(f"w{i}", profile=each) for i, each in enumerate(profiles)]
)
LEASES = st.lists(st.dictionaries(PROFILES, st.integers(1, 4), min_size=1), max_size=3).map(
    lambda found: [lease(f"l{i}", gpus, at=float(i)) for i, gpus in enumerate(found)]
)


@given(WORKERS, LEASES)
def test_workers_settle_and_no_lease_has_too_many(workers, leases):
    pools = settled(workers, leases, now=10.0)
    assert HOME in pools.values()
    kinds = {each.worker: each.profile for each in workers}
    for each in leases:
        found = Counter(kinds[name] for name, pool in pools.items() if pool == each.name)
        assert all(found[profile] <= limit(each, profile) for profile in ("l4", "h100"))
    # Nobody stays at home whom a lease is waiting for, but for the one that the pool keeps.
    at_home = sorted(name for name, pool in pools.items() if pool == HOME)[1:]
    for name in at_home:
        for each in leases:
            members = sum(pools[other] == each.name and kinds[other] == kinds[name] for other in pools)
            assert members >= limit(each, kinds[name])


def test_the_last_heartbeat_of_a_worker_that_has_arrived_elsewhere_does_not_count():
    """It would count twice, and another worker would have to leave."""
    left = replace(worker("b"), moves_to="eval", is_ready=False)
    workers = [worker("a"), left, worker("b", "eval"), worker("c", "eval")]
    assert best_pool(workers[3], HOME, [lease(gpus={"l4": 2})], workers, 1.0) == "eval"
