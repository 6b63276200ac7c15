"""Order of jobs if all are queued before a lane takes any, and deadlines by a fake clock."""

import threading

import pytest

from sie_triton.pipeline.scheduling import scheduler as module
from sie_triton.pipeline.scheduling.scheduler import PASSES, Pace
from tests.pure.pipeline.scheduling.test_lanes import BLOCK, MS, Lanes, Slots
from tests.support.controller import wait_for


def order(submit, **more) -> list[list[int]]:
    """Return the sub-batches of one lane after `submit(lanes)`."""
    lanes = Lanes(**more)
    with lanes.held():
        submit(lanes)
    return lanes.finish()


def test_waiting_items_are_batched_in_order_of_arrival_up_to_the_budget():
    assert order(lambda lanes: lanes.submit([3], [1], [4], [20], [5])) == [[1, 3, 4], [20], [5]]


def test_an_earlier_arrival_runs_first_though_submitted_late():
    lanes = Lanes()
    with lanes.held():
        lanes.scheduler.submit([*Slots(4), *Slots(6)])
        lanes.scheduler.submit_late([*Slots(9), *Slots(2), *Slots(3, 5)])
    assert lanes.finish() == [[9], [2, 4], [3, 5], [6]]


def test_a_long_item_does_not_wait_for_a_flood_of_short_ones():
    assert any(9 in costs for costs in order(lambda lanes: lanes.submit(*[[1] * 60] * 8, [9]))[:2])


def test_bulk_requests_take_turns():
    def submit(lanes):
        lanes.submit_bulk(11, 12, 13)
        lanes.submit_bulk(21, 22)

    assert order(submit) == [[11], [21], [12], [22], [13]]


def test_a_multi_item_job_runs_after_every_two_single_jobs():
    assert order(lambda lanes: lanes.submit(*[[10]] * 6, *[[5, 5]] * 3)) == [[10], [10], [5, 5]] * 3


def test_a_pass_takes_the_items_of_a_limited_number_of_requests():
    ran = order(lambda lanes: lanes.submit(*[[1]] * 5, *[[1, 1, 1]] * 3), max_requests=2)
    assert ran == [[1, 1], [1, 1], [1] * 6, [1], [1] * 3]


def test_a_bulk_job_runs_after_every_two_interactive_jobs():
    def submit(lanes):
        lanes.submit_bulk(91, 92, 93)
        lanes.submit(*[[10]] * 6)

    assert PASSES == 2
    assert order(submit) == [[10], [10], [91], [10], [10], [92], [10], [10], [93]]


@pytest.mark.parametrize("waiting", ["several", "bulk"])
def test_each_lane_may_pass_a_class_twice(waiting):
    """One of two lanes is occupied until the end, so the other runs everything else, in order."""
    lanes = Lanes(cores=2)
    lanes.release.set()
    with lanes.held():
        if waiting == "bulk":
            lanes.submit_bulk(8)
        else:
            lanes.submit([4, 4])
        lanes.submit([BLOCK], [1], *[[10]] * 6)
    wait_for(lambda: len(lanes.ran) == 9)
    assert [*map(sum, lanes.finish())].index(8) == 2 * PASSES


# --- what is over, or late


def test_an_ended_job_is_not_run():
    lanes = Lanes()
    with lanes.held():
        lanes.submit([9], [2, 2], deadline_ns=1)
        lanes.submit([3])
        over = list(Slots(55, deadline_ns=1))
        lanes.scheduler.submit_bulk([over, over])
    assert lanes.finish() == [[3]]
    assert not lanes.scheduler.crowded_since_ns


def test_dropped_jobs_are_not_waited_for():
    """Otherwise the next arrivals would wait behind an empty queue."""
    lanes = Lanes()
    with lanes.held():
        lanes.submit([10], deadline_ns=1)
    wait_for(lambda: not lanes.scheduler._has_work())
    lanes.scheduler._gather_s = 30.0
    submitting = threading.Thread(target=lanes.submit, args=([7],), daemon=True)
    submitting.start()
    submitting.join(10)
    assert not submitting.is_alive()
    assert lanes.finish() == [[7]]


@pytest.fixture
def clocked(monkeypatch):
    """One lane with a budget of 8 and a known pace of 20 ms per unit of cost."""
    lanes = Lanes(budget=8)
    monkeypatch.setattr(module, "monotonic_ns", lambda: lanes.now)
    lanes.pass_time = 20 * MS
    lanes.scheduler._pace.add(1, 20 * MS)
    return lanes


def test_a_job_expected_too_late_runs_if_no_other_waits(clocked):
    with clocked.held():
        clocked.submit([8], deadline_ns=clocked.now + 10 * MS)
    assert clocked.finish() == [[8]]


def test_a_job_expected_too_late_gives_way_to_others(clocked):
    with clocked.held():
        clocked.submit([3], deadline_ns=clocked.now + 10 * MS)
        clocked.submit([4], [2])
    assert clocked.finish() == [[2, 4]]


@pytest.mark.parametrize(("left_ms", "first"), [(70, 3), (10_000, 8), (1, 2)])
def test_a_sub_batch_is_no_longer_than_its_deadlines_allow(clocked, left_ms, first):
    """Three fit in 70 ms; a quarter of the budget is always tried."""
    with clocked.held():
        clocked.submit(*[[1]] * 8, deadline_ns=clocked.now + left_ms * MS)
    assert clocked.finish()[0] == [1] * first


def test_items_with_deadlines_run_before_a_long_queue(clocked):
    """Three items that fit into 60 ms run first, in a sub-batch of their own."""
    with clocked.held():
        clocked.submit(*[[1]] * 3, deadline_ns=clocked.now + 70 * MS)
        clocked.submit(*[[1]] * 8)
    assert clocked.finish() == [[1] * 3, [1] * 8]


def test_the_pace_is_that_of_the_slower_sub_batches():
    pace = Pace()
    assert pace.expected_ns(100) == 0
    assert pace.cost_within(1) == float("inf")
    for ns in (9, 2, 14, 5, 12, 7, 16, 1, 10, 3, 13, 6, 15, 8, 4, 11):
        pace.add(2, 2 * ns)
    assert pace.expected_ns(100) == 1300  # the pace of three in four sub-batches is faster
    assert pace.cost_within(130) == 10
    for _ in range(16):
        pace.add(1, 1)
    assert pace.expected_ns(100) == 100  # only the latest sub-batches count
