from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.pipeline.scheduling import COST_FUNCTIONS, balanced, plan

COSTS = st.lists(st.integers(1, 600), max_size=200)
BUDGETS = st.integers(1, 2000)


@given(COSTS, BUDGETS)
def test_every_item_runs_exactly_once(costs, budget):
    assert sorted(i for batch in plan(costs, budget) for i in batch) == list(range(len(costs)))


@given(COSTS, BUDGETS)
def test_only_a_lone_item_exceeds_the_budget(costs, budget):
    for batch in plan(costs, budget):
        assert batch
        assert len(batch) == 1 or sum(costs[i] for i in batch) <= budget


@given(COSTS, BUDGETS)
def test_neighbours_in_cost_run_together(costs, budget):
    order = [costs[i] for batch in plan(costs, budget) for i in batch]
    assert order == sorted(order)


@given(COSTS, BUDGETS)
def test_no_two_neighbouring_sub_batches_would_fit_in_one(costs, budget):
    batches = [sum(costs[i] for i in batch) for batch in plan(costs, budget)]
    assert all(left + right > budget for left, right in pairwise(batches))


@given(COSTS.filter(bool), BUDGETS, st.integers(1, 4))
def test_balanced_costs_no_extra_wave(costs, budget, lanes):
    even = balanced(costs, budget, lanes)
    waves = -(-sum(costs) // (budget * lanes))
    assert even <= budget
    if even < budget:
        assert len(plan(costs, even)) <= waves * lanes


def test_cost_functions():
    lengths = np.array([1, 256, 512, 1024], np.int32)
    assert COST_FUNCTIONS["tokens"](lengths).tolist() == [1, 256, 512, 1024]
    assert COST_FUNCTIONS["attention"](lengths).tolist() == [1, 128, 512, 2048]
