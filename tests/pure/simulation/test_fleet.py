"""The number of machines: from zero, over a day, and the scaling rules' bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import REFERENCE, RULES
from benchmarks.simulation.scaling import (
    COOLDOWN_S,
    POLL_S,
    STABILISATION_S,
    Demand,
    Scaling,
)


@given(st.integers(1, 30))
def test_workers_stay_for_the_whole_window(num):
    """Demand that ends keeps its workers for STABILISATION_S, and the last one for COOLDOWN_S."""
    scaling = Scaling(0, 30)
    assert scaling.next(0.0, Demand(queue_depth=10 * num), num) == num
    times = [poll * POLL_S for poll in range(1, 80)]
    for now in times:
        before, num = num, scaling.next(now, Demand(), num)
        assert num == before or now >= STABILISATION_S
        assert bool(num) == (now < COOLDOWN_S)


def test_a_short_queue_wakes_no_pool():
    assert Scaling(0, 9).next(0.0, Demand(queue_depth=2), 0) == 0
    assert Scaling(0, 9).next(0.0, Demand(queue_depth=3), 0) == 1


@pytest.mark.parametrize("rules", RULES)
def test_from_zero_the_first_answer_needs_a_poll_a_start_and_a_load(figures, rules):
    exact = Parameters(load_sigma=0, slow_load_ratio=0)
    of = figures(exact, rules, "from-zero", rate=1, seconds=300, workers=5, models=3)
    start_s = exact.machine_start_s + exact.server_start_s
    pause_s = 11.0 if rules == REFERENCE else 0.0  # until the reference's queue delivers it again
    assert start_s + exact.first_load_s <= of["first_answer_s"]
    assert of["first_answer_s"] <= 1 + POLL_S + exact.retry_s + start_s + exact.first_load_s + 1 + pause_s
    assert of["most_machines"] >= 1
