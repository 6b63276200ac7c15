"""Small simulations."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.simulation.load import arrivals
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import OURS, Simulation


@pytest.fixture
def simulated():
    def run(parameters=None, rules=OURS, scenario="steady", *, rate, seconds, workers=1, models=1, seed=0):
        of = parameters or Parameters()
        asked = arrivals(
            rate,
            seconds,
            models,
            exponent=of.zipf,
            num_tenants=of.num_tenants,
            scenario=scenario,
            rng=np.random.default_rng(seed),
        )
        simulation = Simulation(of, asked, workers, rules, scenario, seed)
        simulation.run()
        return simulation, asked

    return run


@pytest.fixture
def figures(simulated):
    """Return the figures of a simulation, which can be compared: there is no nan among them."""

    def run(*arguments, **named):
        result = asdict(simulated(*arguments, **named)[0].result(0.0))
        return {name: value if value == value else None for name, value in result.items()}

    return run
