"""The parameters that the comparison with a real cluster takes from closed loops."""

import pytest

from sie_triton.bench import simulated
from sie_triton.bench.simulated import ALONE, MANY, MIDDLE, Loop, parameters_of


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(simulated.os, "sched_getaffinity", lambda _: {0, 1})


def loop(call_s: float, request_s: float, num_joined: float, queue_s: float = 0.002, p50_s: float = 0.02) -> Loop:
    return Loop(100.0, p50_s, 0.1, call_s / num_joined + request_s, queue_s, num_joined)


def test_the_times_of_calls_and_requests_are_told_apart():
    loops = {ALONE: loop(0.008, 0.001, 1), MIDDLE: loop(0.008, 0.001, 2, 0.0015), MANY: loop(0.008, 0.001, 16)}
    found = parameters_of(loops, idle_cores=0.25)
    assert (found.call_s, found.request_s) == pytest.approx((0.008, 0.001))
    assert (found.queue_work_s, found.shared_lanes, found.call_sigma) == (0.0015, 1.75, 0.1)
    assert found.queue_s == pytest.approx(0.02 - 0.009 - 0.002)


def test_noise_makes_no_parameter_negative():
    """Requests that are joined cost more here than one alone, and the processor's time is longer than the latency."""
    loops = {ALONE: loop(0, 0.005, 1, p50_s=0.001), MIDDLE: loop(0, 0.005, 1), MANY: loop(0, 0.009, 1.0)}
    found = parameters_of(loops, idle_cores=0.0)
    assert (found.call_s, found.request_s, found.queue_s) == (0.0, 0.005, 0.0)
