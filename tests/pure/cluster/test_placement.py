"""Which worker takes a model, who helps it, and how much work a worker fetches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.cluster.messages import Health
from sie_triton.cluster.policies.placement import TURN_S, may_claim, order, should_help
from sie_triton.cluster.policies.quantum import FIRST_OPEN, MAX_OPEN, MIN_OPEN, WINDOW, Quantum

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


def test_a_model_in_memory_beats_a_free_and_idle_worker():
    busy = worker("busy", {MODEL: (5, 0.0), "x": (5, 0.0), "y": (5, 0.0)}, num_open=100)
    assert order(MODEL, 5, [worker("free", free=50), busy]) == ["busy", "free"]


def test_a_worker_with_room_beats_one_that_has_to_evict():
    assert order(MODEL, 5, [worker("evicts", {"x": (9, 1e6)}), worker("room", {"y": (1, 0.0)}, free=5)])[0] == "room"
    assert order(MODEL, 6, [worker("evicts", {"x": (9, 1e6)}), worker("room", {"y": (1, 0.0)}, free=5)])[0] == "evicts"


def test_the_model_longest_unused_is_evicted():
    workers = [worker("a", {"x": (5, 10.0)}), worker("b", {"x": (5, 900.0)}), worker("c", {"x": (5, 60.0)})]
    assert order(MODEL, 5, workers) == ["b", "c", "a"]


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


def test_among_equals_the_fewest_models_and_then_requests_win():
    few, many = {"x": (1, 9.0)}, {"x": (1, 9.0), "y": (1, 9.0)}
    workers = [worker("a", many, free=9), worker("b", few, free=9, num_open=2), worker("c", few, free=9, num_open=1)]
    assert order(MODEL, 5, workers) == ["c", "b", "a"]


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
    may = [name for name in preferred if may_claim(name, preferred, (turn + 0.5) * TURN_S)]
    assert may == preferred[: turn + 1]


def test_the_best_worker_need_not_wait():
    assert may_claim("a", ["a", "b"], 0)
    assert not may_claim("b", ["a", "b"], 0)


def test_a_worker_that_cannot_serve_the_model_never_claims_it():
    assert not may_claim("c", ["a", "b"], 1e9)
    assert not may_claim("c", [], 1e9)


# --- help

IDLE, HOLDER, OTHER = worker("idle", limit=100), worker("holder", limit=10), worker("other", limit=1000)


def helps(helper=IDLE, holders=("holder",), backlog=1000, workers=(IDLE, HOLDER, OTHER)) -> bool:
    return should_help(helper, holders, backlog, workers)


def test_an_idle_worker_helps_if_much_more_waits_than_the_holders_may_have_open():
    assert helps()
    assert not helps(backlog=10)
    assert not helps(holders=["holder", "other"])


def test_a_holder_does_not_help_itself():
    assert not helps(HOLDER)


def test_a_worker_that_is_not_ready_does_not_help():
    assert not helps(replace(IDLE, is_ready=False))


@pytest.mark.parametrize(("num_open", "expected"), [(0, True), (25, True), (26, False), (100, False)])
def test_a_worker_with_work_of_its_own_does_not_help(num_open, expected):
    assert helps(replace(IDLE, open=num_open)) is expected


def test_a_holder_that_is_gone_counts_for_nothing():
    assert helps(backlog=1, workers=(IDLE, OTHER))
    assert not helps(backlog=0, workers=(IDLE, OTHER))


# --- how much work a worker fetches


def after(quantum: Quantum, *waits_ms: float, was_full: bool = True) -> int:
    for wait_ms in waits_ms:
        quantum.add(wait_ms, was_full)
    return quantum.limit


def test_the_limit_changes_only_after_a_whole_window():
    quantum = Quantum(target_ms=50)
    assert after(quantum, *[10] * (WINDOW - 1)) == FIRST_OPEN
    assert after(quantum, 10) > FIRST_OPEN


def test_the_next_window_begins_empty():
    quantum = Quantum(target_ms=50)
    limit = after(quantum, *[10] * WINDOW)
    assert after(quantum, *[90] * (WINDOW - 1)) == limit
    assert after(quantum, 90) < limit


def test_short_waits_raise_a_limit_that_was_reached():
    assert after(Quantum(50), *[10] * WINDOW) == FIRST_OPEN + FIRST_OPEN // 8
    assert after(Quantum(50), *[50] * WINDOW) == FIRST_OPEN + FIRST_OPEN // 8


def test_a_limit_that_was_not_reached_stays():
    """The waits say nothing about more requests."""
    assert after(Quantum(50), *[10] * WINDOW, was_full=False) == FIRST_OPEN


def test_long_waits_lower_the_limit_even_if_it_was_not_reached():
    assert after(Quantum(50), *[51] * WINDOW, was_full=False) == FIRST_OPEN - FIRST_OPEN // 4


def test_a_limit_reached_once_in_a_window_is_raised():
    quantum = Quantum(50)
    after(quantum, *[10] * 5, was_full=False)
    after(quantum, 10, was_full=True)
    limit = after(quantum, *[10] * (WINDOW - 6), was_full=False)
    assert limit > FIRST_OPEN
    assert after(quantum, *[10] * WINDOW, was_full=False) == limit


def test_the_median_decides():
    half = WINDOW // 2
    assert after(Quantum(50), *[1e6] * (half - 1), *[1] * (half + 1)) > FIRST_OPEN
    assert after(Quantum(50), *[1e6] * (half + 1), *[1] * (half - 1)) < FIRST_OPEN


@given(st.lists(st.tuples(st.sampled_from([0, 1e6]), st.booleans()), max_size=60))
def test_the_limit_stays_between_its_bounds(windows):
    quantum = Quantum(50)
    for wait_ms, was_full in windows:
        assert MIN_OPEN <= after(quantum, *[wait_ms] * WINDOW, was_full=was_full) <= MAX_OPEN


def test_a_fast_triton_gets_as_much_as_is_allowed():
    quantum = Quantum(50)
    assert [after(quantum, *[1] * WINDOW) for _ in range(40)][-1] == MAX_OPEN


def test_a_low_limit_can_be_raised_again():
    quantum = Quantum(50)
    lowest = [after(quantum, *[90] * WINDOW) for _ in range(60)][-1]
    assert lowest < 8
    assert after(quantum, *[1] * WINDOW) == lowest + 1
