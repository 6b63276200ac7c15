"""What holds for every simulation: it is repeatable, each request is over once, and queues are as theory says."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulation.load import SCENARIOS, Outcome
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import OURS, REFERENCE, RULES

PARAMETERS = Parameters(machine_start_s=5, server_start_s=2, spot_losses_per_hour=120)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rules", RULES)
def test_each_request_is_over_once(simulated, rules, scenario):
    rate = 1.5 * 4 * PARAMETERS.capacity
    simulation, asked = simulated(PARAMETERS, rules, scenario, rate=rate, seconds=40, workers=4, models=30)
    book = simulation.book
    assert book.counts.total() == book.counted.total() == len(asked.times) > 100
    assert len(book.latencies_s) == book.counts[Outcome.ANSWERED]
    assert not book.num_open


def test_answers_come_in_time(simulated):
    simulation, _ = simulated(PARAMETERS, rate=30, seconds=120, workers=4, models=30)
    assert 0 < min(simulation.book.latencies_s) <= max(simulation.book.latencies_s) <= PARAMETERS.deadline_s + 0.1


@pytest.mark.parametrize("num_tenants", [1, 4])
def test_of_more_than_a_worker_computes_the_rest_is_refused(simulated, num_tenants):
    parameters = replace(PARAMETERS, num_tenants=num_tenants)
    simulation, asked = simulated(parameters, rate=1.5 * parameters.capacity, seconds=300)
    counts = simulation.book.counts
    assert counts[Outcome.ANSWERED] > 0.8 * parameters.capacity * asked.ends_at
    assert counts[Outcome.REFUSED] > counts[Outcome.LATE]


@pytest.mark.parametrize("rules", RULES)
def test_the_same_seed_gives_the_same_result(figures, rules):
    def run(seed):
        return figures(PARAMETERS, rules, "spot", rate=8, seconds=60, workers=4, models=30, seed=seed)

    assert run(1) == run(1) != run(2)


# One model in memory, and requests that are computed one by one.
PLAIN = Parameters(
    texts_of_request=1,
    call_s=0.0,
    request_s=0.1,
    call_sigma=0.0,
    queue_s=0.0,
    max_requests=1,
    num_tenants=1,
    deadline_s=3600,
    target_ms=1e9,
    first_load_s=0.0,
    slow_load_ratio=0.0,
)


UTILISATION = 0.6


def mean_s(simulated, parameters):
    simulation, asked = simulated(parameters, rate=10 * UTILISATION, seconds=5000)
    assert simulation.result(0.0).utilisation == pytest.approx(UTILISATION, rel=0.05)
    assert simulation.book.counts[Outcome.ANSWERED] == len(asked.times)
    return float(np.mean(simulation.book.latencies_s))


def test_one_call_at_a_time_is_a_queue_with_fixed_times(simulated):
    """M/D/1: the mean wait is half of that with exponential times."""
    expected_s = 0.1 + 0.1 * UTILISATION / (2 * (1 - UTILISATION))
    assert mean_s(simulated, PLAIN) == pytest.approx(expected_s, rel=0.1)


def test_many_calls_at_a_time_share_the_processor(simulated):
    """M/G/1 with processor sharing."""
    parameters = PLAIN.changed({"max_calls": 1000})
    assert mean_s(simulated, parameters) == pytest.approx(0.1 / (1 - UTILISATION), rel=0.1)


def test_joined_requests_share_the_time_of_a_call(simulated):
    """A call that costs nine times a request answers an overload of four."""
    parameters = PLAIN.changed({"call_s": 0.09, "request_s": 0.01, "max_requests": 64})
    simulation, asked = simulated(parameters, rate=40, seconds=500)
    assert simulation.book.counts[Outcome.ANSWERED] == len(asked.times)
    assert np.percentile(simulation.book.latencies_s, 99) < 1


def test_affinity_needs_fewer_loads_and_answers_more(figures):
    """More models than any machine has room for, of a size at which all machines together have room for them."""
    free = Parameters(reference_max_pending=10**9)
    run = {rules: figures(free, rules, rate=5, seconds=200, workers=10, models=60) for rules in RULES}
    assert run[OURS]["num_loads"] * 3 < run[REFERENCE]["num_loads"]
    assert run[OURS]["num_answered"] == run[OURS]["num_requests"] > run[REFERENCE]["num_answered"]


def test_both_rules_answer_all_if_all_models_fit(figures):
    """Affinity then costs some latency: a model stays at one machine as long as that keeps up."""
    small = Parameters(model_gb=0.1, first_load_s=0.5, slow_load_ratio=0)
    run = {rules: figures(small, rules, rate=10, seconds=300, workers=10, models=4) for rules in RULES}
    assert run[OURS]["num_answered"] == run[REFERENCE]["num_answered"]
    assert run[OURS]["p50_s"] == pytest.approx(run[REFERENCE]["p50_s"], rel=0.2)


def test_a_spot_loss_loses_no_request(figures):
    parameters = PARAMETERS.changed({"deadline_s": 120.0})
    of = figures(parameters, OURS, "spot", rate=6, seconds=240, workers=6, models=12)
    assert of["num_lost_machines"] > 10
    assert of["num_answered"] == of["num_requests"]
