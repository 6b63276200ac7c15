"""Which worker takes a model, who helps it, and how much work a worker fetches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.cluster.messages import Health
from sie_triton.cluster.policies.placement import may_claim, order, should_help
from sie_triton.cluster.policies.quantum import FIRST_OPEN, WINDOW, Quantum

MODEL = "m"


def worker(name, resident=(), *, free=0, num_open=0, is_ready=True, models=(MODEL,), limit=10):
    return Health(name, "p", "", is_ready, list(models), [], dict(resident), free, num_open, limit)


RESIDENTS = st.dictionaries(
    st.sampled_from([MODEL, "x", "y", "z"]), st.tuples(st.integers(0, 9), st.floats(0, 1000)), max_size=4
)
WORKERS = st.lists(
    st.builds(
        worker,
        st.text("abcdefgh", min_size=1, max_size=3),
        RESIDENTS,
        free=st.integers(0, 9),
        num_open=st.integers(0, 5),
        is_ready=st.booleans(),
        models=st.sampled_from([(MODEL,), ("x", MODEL), ("x",), ()]),
    ),
    max_size=6,
    unique_by=lambda each: each.worker,
)


@given(WORKERS, st.integers(0, 20))
def test_each_worker_that_can_serve_a_model_is_in_order_once(workers, num_bytes):
    able = [each.worker for each in workers if each.is_ready and MODEL in each.models]
    assert sorted(order(MODEL, num_bytes, workers)) == sorted(able)


@given(WORKERS, st.integers(0, 20), st.randoms())
def test_all_workers_find_the_same_order(workers, num_bytes, random):
    """Each has heard the heartbeats in another order."""
    shuffled = list(workers)
    random.shuffle(shuffled)
    assert order(MODEL, num_bytes, shuffled) == order(MODEL, num_bytes, workers)


@given(WORKERS, st.integers(0, 20))
def test_workers_with_the_model_in_memory_are_first(workers, num_bytes):
    with_model = {each.worker for each in workers if MODEL in each.resident}
    ordered = [name in with_model for name in order(MODEL, num_bytes, workers)]
    assert ordered == sorted(ordered, reverse=True)


@given(WORKERS, st.integers(0, 20))
def test_a_worker_that_goes_away_changes_nothing_for_the_others(workers, num_bytes):
    ordered = order(MODEL, num_bytes, workers)
    for gone in ordered:
        others = [each for each in workers if each.worker != gone]
        assert order(MODEL, num_bytes, others) == [name for name in ordered if name != gone]


def test_a_worker_with_room_beats_one_that_has_to_evict():
    assert order(MODEL, 5, [worker("evicts", {"x": (9, 1e6)}), worker("room", {"y": (1, 0.0)}, free=5)])[0] == "room"
    assert order(MODEL, 6, [worker("evicts", {"x": (9, 1e6)}), worker("room", {"y": (1, 0.0)}, free=5)])[0] == "evicts"


def test_models_that_stay_do_not_count():
    """A model used just now stays, because an old one makes room."""
    assert (
        order(MODEL, 5, [worker("a", {"old": (5, 500.0), "new": (5, 0.0)}), worker("b", {"x": (5, 400.0)})])[0] == "a"
    )


def test_of_several_models_that_must_leave_the_one_used_last_counts():
    both = worker("both", {"old": (3, 900.0), "new": (3, 10.0)})
    assert order(MODEL, 5, [both, worker("one", {"x": (5, 60.0)})]) == ["one", "both"]
    assert order(MODEL, 5, [both, worker("one", {"x": (5, 5.0)})]) == ["both", "one"]


def test_free_memory_is_not_evicted():
    """Of 5 bytes 3 are free: one model must leave, not both."""
    part_free = worker("part free", {"old": (3, 900.0), "new": (3, 10.0)}, free=3)
    assert order(MODEL, 5, [worker("one", {"x": (5, 60.0)}), part_free]) == ["part free", "one"]


def test_a_worker_too_small_for_the_model_is_last():
    assert order(MODEL, 50, [worker("small", {"x": (9, 1e9)}), worker("large", {"x": (50, 0.0)})]) == ["large", "small"]


def test_equal_workers_share_the_models():
    models = [f"org__m{number}" for number in range(400)]
    workers = [worker(name, free=9, models=models) for name in "abcd"]
    firsts = [order(model, 5, workers)[0] for model in models]
    assert all(firsts.count(name) > 50 for name in "abcd")
    seconds = {order(model, 5, workers)[1] for model in models if order(model, 5, workers)[0] == "a"}
    assert seconds == {"b", "c", "d"}


# --- turns


@given(st.lists(st.text("abc", min_size=1), unique=True, max_size=5), st.integers(0, 8))
def test_each_turn_one_more_worker_may_claim_the_model(preferred, turn):
    may = [name for name in preferred if may_claim(name, preferred, (turn + 0.5) * 0.5)]
    assert may == preferred[: turn + 1]


def test_among_equals_the_fewest_models_and_then_requests_win():
    few, many = {"x": (1, 9.0)}, {"x": (1, 9.0), "y": (1, 9.0)}
    workers = [worker("a", many, free=9), worker("b", few, free=9, num_open=2), worker("c", few, free=9, num_open=1)]
    assert order(MODEL, 5, workers) == ["c", "b", "a"]


# --- help

ALL = IDLE, HOLDER, OTHER = worker("idle", limit=100), worker("holder", limit=10), worker("other", limit=1000)


@pytest.mark.parametrize(
    ("helper", "holders", "backlog", "workers", "helps"),
    [
        (IDLE, ["holder"], 21, ALL, True),
        (IDLE, ["holder"], 20, ALL, False),  # twice as many as the holder may have open
        (IDLE, ["holder", "other"], 1000, ALL, False),
        (HOLDER, ["holder"], 1000, ALL, False),
        (replace(IDLE, is_ready=False), ["holder"], 1000, ALL, False),
        (replace(IDLE, open=25), ["holder"], 1000, ALL, True),
        (replace(IDLE, open=26), ["holder"], 1000, ALL, False),  # it has work of its own
        (IDLE, ["holder"], 1, (IDLE, OTHER), True),  # the holder is gone
        (IDLE, ["holder"], 0, (IDLE, OTHER), False),
    ],
)
def test_an_idle_worker_helps_those_who_do_not_keep_up(helper, holders, backlog, workers, helps):
    assert should_help(helper, holders, backlog, workers) is helps


# --- how much work a worker fetches


def after(quantum: Quantum, *waits_ms: float, was_full: bool = True) -> int:
    for wait_ms in waits_ms:
        quantum.add(wait_ms, was_full)
    return quantum.limit


def test_a_limit_reached_once_in_a_window_is_raised():
    quantum = Quantum(50)
    after(quantum, *[10] * 5, was_full=False)
    after(quantum, 10, was_full=True)
    limit = after(quantum, *[10] * (WINDOW - 6), was_full=False)
    assert limit > FIRST_OPEN
    assert after(quantum, *[10] * WINDOW, was_full=False) == limit


HALF = WINDOW // 2


@pytest.mark.parametrize(
    ("waits_ms", "was_full", "limit"),
    [
        ([10] * (WINDOW - 1), True, FIRST_OPEN),  # not before the end of a window
        ([10] * WINDOW, True, 72),
        ([50] * WINDOW, True, 72),
        ([10] * WINDOW, False, FIRST_OPEN),  # the waits say nothing about more requests
        ([51] * WINDOW, False, 48),
        ([10] * WINDOW + [90] * (WINDOW - 1), True, 72),
        ([10] * WINDOW + [90] * WINDOW, True, 54),
        ([1e6] * (HALF - 1) + [1] * (HALF + 1), True, 72),  # the median decides
        ([1e6] * (HALF + 1) + [1] * (HALF - 1), True, 48),
        ([1] * 40 * WINDOW, True, 512),
        ([90] * 60 * WINDOW, True, 4),
        ([90] * 60 * WINDOW + [1] * WINDOW, True, 5),
    ],
)
def test_the_limit_follows_the_median_of_a_window(waits_ms, was_full, limit):
    assert after(Quantum(target_ms=50), *waits_ms, was_full=was_full) == limit


@given(st.lists(st.tuples(st.sampled_from([0, 1e6]), st.booleans()), max_size=60))
def test_the_limit_stays_between_its_bounds(windows):
    quantum = Quantum(50)
    for wait_ms, was_full in windows:
        assert 4 <= after(quantum, *[wait_ms] * WINDOW, was_full=was_full) <= 512
