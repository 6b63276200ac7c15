"""Turns before the queue; the clock and the window are doubles."""

import asyncio

import pytest

from sie_triton.cluster.gateway import queue
from sie_triton.cluster.gateway.queue import Gate
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.errors import BusyError
from tests.support.joiners import in_loop

MIN_RATED = GatewayLimits.min_rated


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(queue, "monotonic", lambda: now[0])
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
            await passed(gates, now, 0.01)
            now[0] += 10
        await asyncio.gather(*(passed(gates, now, 0.01, left_s=5) for _ in range(100)))


class Worker:
    """Answers one request a second, in their order. `outcomes` are those of the requests that have ended."""

    def __init__(self, gates: Gate, now) -> None:
        self._gates, self._now = gates, now
        self._computed: list[asyncio.Event] = []
        self.open: dict[asyncio.Task[None], float] = {}
        self.outcomes: list[str] = []

    async def ask(self, left_s: float, num_bytes: int = 100, tenant: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(self._ask(left_s, num_bytes, tenant))
        self.open[task] = self._now[0] + left_s
        task.add_done_callback(self.open.pop)
        await settled()
        return task

    async def _ask(self, left_s: float, num_bytes: int, tenant: str) -> None:
        try:
            async with self._gates.turn("p", "m", tenant, left_s, num_bytes):
                self._computed.append(computed := asyncio.Event())
                await computed.wait()
            self.outcomes.append("in time")
        except BusyError:
            self.outcomes.append("refused")

    async def work(self) -> None:
        """Compute one request, whose client may have gone, and end those whose time has passed."""
        self._now[0] += 1
        if self._computed:
            self._computed.pop(0).set()
        await settled()
        for task, ends_at in [*self.open.items()]:
            if ends_at <= self._now[0]:
                self.outcomes.append("late")
                task.cancel()
        await settled()

    async def end(self) -> None:
        for task in self.open:
            task.cancel()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("window", [4, 1000], ids="{} in the queue".format)
@in_loop
async def test_of_twice_what_a_worker_computes_half_is_in_time_and_the_rest_is_refused(now, window):
    worker = Worker(Gate(lambda pool, model: window), now)
    for _ in range(200):
        await worker.ask(left_s=10)
        await worker.ask(left_s=10)
        await worker.work()
    await worker.end()
    assert worker.outcomes.count("in time") > 130
    assert worker.outcomes.count("refused") > 3 * worker.outcomes.count("late")


async def flooded(now) -> Worker:
    """Return a worker that has 40 requests of one tenant, and has answered as many."""
    worker = Worker(Gate(lambda pool, model: 4), now)
    for _ in range(40):
        await worker.ask(left_s=1000)
        await worker.ask(left_s=1000)
        await worker.work()
    return worker


@in_loop
async def test_a_request_that_passes_others_is_not_refused_for_them(now):
    """It is of another tenant, or much smaller."""
    worker = await flooded(now)
    await worker.ask(left_s=20)
    assert worker.outcomes.pop() == "refused"
    others = [await worker.ask(left_s=20, tenant="another"), await worker.ask(left_s=20, num_bytes=10)]
    assert not any(each.done() for each in others)
    await worker.end()


@in_loop
async def test_a_client_that_does_not_wait_says_nothing_about_the_worker(now):
    worker = await flooded(now)
    for task in [await worker.ask(left_s=1000) for _ in range(40)]:
        task.cancel()
    await settled()
    await worker.ask(left_s=20)
    assert worker.outcomes.pop() == "refused"
    await worker.end()


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
    async with gates.turn("p", "m", "a", 60):
        waiting = [asyncio.create_task(passed(gates, now, 0, "a")) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await passed(gates, now, 0, "a")
        waiting.append(asyncio.create_task(passed(gates, now, 0, "b")))
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)


@in_loop
async def test_a_tenant_with_few_requests_in_the_queue_does_not_wait_for_those_of_a_flood(now):
    limits = GatewayLimits()
    worker = Worker(Gate(lambda pool, model: 8, limits), now)
    for _ in range(20):
        await worker.ask(left_s=1000, tenant="a")
    for _ in range(limits.min_of_tenant + 2):
        await worker.ask(left_s=1000, tenant="b")
    assert len(worker._computed) == 8 + limits.min_of_tenant
    for number in range(8):
        await worker.ask(left_s=1000, tenant=f"c{number}")
    assert len(worker._computed) == 2 * 8
    await worker.end()
    assert worker._gates._lines == {}


@in_loop
async def test_a_failed_request_gives_its_turn_back(now):
    gates = Gate(lambda pool, model: 1)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            async with gates.turn("p", "m", "", 60):
                raise ValueError("mine")
    await passed(gates, now, 0)
    assert gates._lines == {}
