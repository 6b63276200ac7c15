"""Turns of tenants, and the number of requests that a gateway may have in the queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.cluster.policies.fair import Turns, window

SENT = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=40)


def turns_of(sent):
    turns = Turns()
    for place, (tenant, _) in enumerate(sent):
        turns.add(tenant, (tenant, place))
    return turns


@given(SENT)
def test_everybody_is_served_once_and_each_tenant_in_order(sent):
    turns = turns_of(sent)
    served = [turns.take() for _ in range(len(turns))]
    assert sorted(place for _, place in served) == list(range(len(sent)))
    for tenant in "abc":
        own = [place for name, place in served if name == tenant]
        assert own == sorted(own)
    assert len(turns) == 0
    with pytest.raises(IndexError):
        turns.take()


@given(SENT)
def test_nobody_is_served_twice_while_another_tenant_waits(sent):
    turns = turns_of(sent)
    served = [turns.take() for _ in range(len(turns))]
    for i in range(1, len(served)):
        if served[i][0] == served[i - 1][0]:
            assert all(name == served[i][0] for name, _ in served[i:])


@given(SENT, st.sampled_from("abcd"))
def test_ahead_is_what_is_served_before_the_next_one(sent, tenant):
    turns = turns_of(sent)
    expected = turns.ahead(tenant)
    turns.add(tenant, (tenant, len(sent)))
    served = [place for _, place in (turns.take() for _ in range(len(turns)))]
    assert served.index(len(sent)) <= expected


@given(st.integers(0, 10_000), st.integers(0, 100))
def test_a_gateway_always_has_a_few_and_shares_with_the_others(limits, num_gateways):
    assert 4 <= window(limits, num_gateways) <= max(4, limits * 2)
    assert window(limits, num_gateways + 1) <= window(limits, max(1, num_gateways))
