"""Turns before the queue; the clock and the window are doubles."""

import asyncio

import pytest

from sie_triton.cluster.gateway import gate
from sie_triton.cluster.gateway.gate import Gate
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.errors import BusyError
from tests.support.joiners import in_loop

MIN_RATED = GatewayLimits.min_rated


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(gate, "monotonic", lambda: now[0])
    return now


async def passed(gates: Gate, now, seconds: float, tenant: str = "", left_s: float = 60) -> None:
    """Take a turn that lasts so many seconds of the clock."""
    async with gates.turn("p", "m", tenant, left_s):
        now[0] += seconds
        await asyncio.sleep(0)


@in_loop
async def test_time_without_requests_is_not_taken_for_slow_answers(now):
    gates = Gate(lambda pool, model: 1)
    await asyncio.gather(*(passed(gates, now, 0.01) for _ in range(100)))
    now[0] += 3600
    await asyncio.gather(*(passed(gates, now, 0.01, left_s=5) for _ in range(100)))


@in_loop
async def test_a_trickle_of_requests_is_not_taken_for_slow_answers(now):
    gates = Gate(lambda pool, model: 2)
    async with gates.turn("p", "m", "", 60):  # so that the line stays
        for _ in range(2 * MIN_RATED):
            await passed(gates, now, 10)
        await asyncio.gather(*(passed(gates, now, 0.01, left_s=5) for _ in range(100)))


@in_loop
async def test_what_would_be_late_is_refused(now):
    gates = Gate(lambda pool, model: 1)
    waiting = [asyncio.create_task(passed(gates, now, 1.0, left_s=1000)) for _ in range(3 * MIN_RATED)]
    while len(gates._lines["p", "m"].ended if gates._lines else ()) < MIN_RATED:
        await asyncio.sleep(0)
    with pytest.raises(BusyError, match="would wait for"):
        await passed(gates, now, 1.0, left_s=2)
    await passed(gates, now, 1.0, tenant="another", left_s=10)
    await asyncio.gather(*waiting)


@in_loop
async def test_cancelled_requests_leave_nothing(now):
    gates = Gate(lambda pool, model: 1)
    async with gates.turn("p", "m", "", 60):
        waiting = [asyncio.create_task(passed(gates, now, 0)) for _ in range(50)]
        await asyncio.sleep(0)
        assert gates.waiting() == {("p", "m"): 50}
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (gates.waiting(), gates.num_waiting) == ({}, 0)
    assert gates._lines == {}


@in_loop
async def test_a_request_that_is_cancelled_as_its_turn_comes_gives_it_to_the_next(now):
    gates = Gate(lambda pool, model: 1)
    async with gates.turn("p", "m", "", 60):
        first, second = (asyncio.create_task(passed(gates, now, 0)) for _ in range(2))
        await asyncio.sleep(0)
    first.cancel()
    await second
    assert (first.cancelled(), gates._lines) == (True, {})


@in_loop
async def test_too_many_requests_of_a_tenant_are_refused(now):
    gates = Gate(lambda pool, model: 1, GatewayLimits(max_waiting_of_tenant=10))
    async with gates.turn("p", "m", "", 60):
        waiting = [asyncio.create_task(passed(gates, now, 0, "a")) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await passed(gates, now, 0, "a")
        waiting.append(asyncio.create_task(passed(gates, now, 0, "b")))
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)


@in_loop
async def test_a_failed_request_gives_its_turn_back(now):
    gates = Gate(lambda pool, model: 1)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            async with gates.turn("p", "m", "", 60):
                raise ValueError("mine")
    await passed(gates, now, 0)
    assert gates._lines == {}
