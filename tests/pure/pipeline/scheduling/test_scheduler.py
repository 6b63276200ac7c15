"""Scheduling: lanes, order, CPU threads, and clocks."""

import errno
import os
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.errors import BusyError
from sie_triton.pipeline.scheduling import cpu_budget as budget
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.scheduler import Scheduler, cost
from sie_triton.pipeline.scheduling.threads import Sweep
from sie_triton.pipeline.stages.inference_job import BusyLog, covered_ns
from sie_triton.pipeline.stages.open_requests import NEVER
from tests.support.threads import no_thread


def test_background_runs_jobs_in_turns_and_outlives_a_failing_one():
    log: list[str] = []
    gate = threading.Event()

    def job(name, steps):
        gate.wait(5)
        for i in range(steps):
            log.append(f"{name}{i}")
            yield
        if name == "b":
            raise RuntimeError

    background = Background("test", lambda: log.append("fault"))
    background.submit(job("a", 3), log.append)
    background.submit(job("b", 2), lambda error: log.append(type(error).__name__))
    gate.set()
    background.close()
    assert log == ["a0", "b0", "a1", "b1", "a2", "RuntimeError"]


class Large:
    """A stand-in for the data that a request holds."""


def test_an_idle_thread_holds_no_job():
    background = Background("test", lambda: None)
    large = Large()
    background.submit(iter([None]), lambda error, held=large: None)
    left = weakref.ref(large)
    del large
    wait_for(lambda: left() is None)
    background.close()


def test_an_idle_lane_holds_no_sub_batch():
    scheduler = Scheduler("cpu", lambda sub_batch, threads: None, 10, CpuBudget(1, list))
    slots = Slots(1)
    left = weakref.ref(slots)
    scheduler.submit(list(slots))
    del slots
    wait_for(lambda: left() is None)
    scheduler.close()


class Slots:
    """Jobs as the scheduler sees them: their costs, and whether their results are still wanted."""

    def __init__(self, *costs: int) -> None:
        self.costs = costs
        self.over = False
        self.deadline_ns = NEVER

    def is_late(self, now_ns):
        return self.over

    def __iter__(self):
        return ((self, i) for i in range(len(self.costs)))


@pytest.fixture
def scheduled():
    """A scheduler of one lane that is busy until `release` is set, and what ran on it."""
    ran: list[list[int]] = []
    release, busy = threading.Event(), threading.Event()

    def run(sub_batch, threads):
        ran.append([cost(slot) for slot in sub_batch])
        busy.set()
        release.wait(5)

    scheduler = Scheduler("cpu", run, 10, CpuBudget(1, list))
    scheduler.submit(list(Slots(1)))
    busy.wait(5)
    yield scheduler, release, ran
    release.set()
    scheduler.close()


def test_waiting_items_are_batched_in_order_of_arrival_up_to_the_budget(scheduled):
    scheduler, release, ran = scheduled
    for costs in ((3,), (1,), (4,), (20,), (5,)):
        scheduler.submit(list(Slots(*costs)))
    release.set()
    wait_for(lambda: len(ran) == 4)
    assert ran == [[1], [1, 3, 4], [20], [5]]


def test_an_earlier_arrival_runs_first_though_submitted_late(scheduled):
    scheduler, release, ran = scheduled
    scheduler.submit([*Slots(4), *Slots(6)])
    scheduler.submit_late([*Slots(9), *Slots(2), *Slots(3, 5)])
    release.set()
    scheduler.close()
    assert ran == [[1], [9], [3, 5], [2, 4], [6]]


def test_a_long_item_does_not_wait_for_a_flood_of_short_ones(scheduled):
    scheduler, release, ran = scheduled
    for _ in range(8):
        scheduler.submit(list(Slots(*[1] * 60)))
    scheduler.submit(list(Slots(9)))
    release.set()
    scheduler.close()
    assert any(9 in costs for costs in ran[:3])


def test_bulk_requests_take_turns(scheduled):
    scheduler, release, ran = scheduled
    scheduler.submit_bulk([list(Slots(i)) for i in (11, 12, 13)])
    scheduler.submit_bulk([list(Slots(i)) for i in (21, 22)])
    release.set()
    scheduler.close()
    assert ran == [[1], [11], [21], [12], [22], [13]]


def test_an_ended_job_is_not_run(scheduled):
    scheduler, release, ran = scheduled
    late, several, bulk = Slots(9), Slots(2, 2), Slots(55)
    scheduler.submit(list(late))
    scheduler.submit(list(several))
    scheduler.submit(list(Slots(3)))
    scheduler.submit_bulk([list(bulk), list(bulk)])
    late.over = several.over = bulk.over = True
    release.set()
    scheduler.close()
    assert ran == [[1], [3]]
    assert not scheduler.crowded_since_ns


@pytest.mark.parametrize(("left_s", "expected"), [(0.07, [1, 1, 1]), (10, [1] * 8), (0.001, [1, 1])])
def test_a_sub_batch_is_no_longer_than_its_deadlines_allow(left_s, expected):
    """20 ms for a cost of 1, a budget of 8: three fit in 70 ms; a quarter of the budget is always tried."""
    ran: list[list[int]] = []
    scheduler = Scheduler(
        "cpu", lambda sub_batch, _: ran.append([cost(slot) for slot in sub_batch]), 8, CpuBudget(1, list)
    )
    scheduler._pace.add(1, 20_000_000)
    with scheduler.reserve_idle_device():
        jobs = [Slots(1) for _ in range(8)]
        for job in jobs:
            job.deadline_ns = time.monotonic_ns() + int(left_s * 1e9)
            scheduler.submit(list(job))
    scheduler.close()
    assert ran[0] == expected


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_models_in_use_share_one_thread_budget(monkeypatch):
    now, second = 100 * 10**9, 10**9
    monkeypatch.setattr(budget, "monotonic_ns", lambda: now)
    busy = {"busy_since_ns": now - 60 * second, "last_used_ns": 0, "granted_bytes": 0}
    just_now = {**busy, "busy_since_ns": 0, "last_used_ns": now}
    long_ago = {**just_now, "last_used_ns": now - 60 * second}
    others: list[dict[str, int]] = [long_ago]
    cpu = CpuBudget(8, lambda: others)
    assert cpu.threads() == 8
    others += [busy, just_now]
    assert cpu.threads() == 8  # counted again after REFRESH_NS
    now += second
    assert cpu.threads() == 8 // 3
    others += [{**long_ago, "granted_bytes": 1}]  # loads
    now += second
    assert cpu.threads() == 8 // 4
    others += [busy] * 20
    now += second
    assert cpu.threads() == 1


def test_the_share_stays_while_the_records_cannot_be_read(monkeypatch):
    now = 100 * 10**9
    monkeypatch.setattr(budget, "monotonic_ns", lambda: now)
    reads = iter([lambda: [{"busy_since_ns": now, "last_used_ns": now, "granted_bytes": 0}], no_file_handle, list])
    cpu = CpuBudget(8, lambda: next(reads)())
    shares = []
    for _ in range(3):
        shares.append(cpu.threads())
        now += budget.REFRESH_NS
    assert shares == [4, 4, 8]


def test_no_sub_batch_is_lost_while_the_records_cannot_be_read():
    ran = []
    scheduler = Scheduler(
        "cpu", lambda sub_batch, threads: ran.append(cost(sub_batch[0])), 9, CpuBudget(1, no_file_handle)
    )
    for each in (9, 8, 7):
        scheduler.submit(list(Slots(each)))
    scheduler.close()
    assert ran == [9, 8, 7]


def no_file_handle():
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_job_for_which_no_thread_starts_is_refused_and_later_ones_run(monkeypatch):
    ran: list[str] = []
    background = Background("test", lambda: ran.append("fault"), most_begun=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", no_thread)
        for _ in range(2):
            with pytest.raises(BusyError, match="no thread"):
                background.submit(map(ran.append, ["refused"]), ran.append)
    background.submit(map(ran.append, "ab"), ran.append)
    background.close()
    assert ran == ["a", "b"]


def test_a_job_for_which_no_further_thread_starts_waits_for_one_that_runs(monkeypatch):
    ran: list[str] = []
    gate = threading.Event()
    background = Background("test", lambda: ran.append("fault"), num_threads=2)
    background.submit(map(gate.wait, [60]), ran.append)
    monkeypatch.setattr(threading, "_start_new_thread", no_thread)
    background.submit(map(ran.append, "ab"), ran.append)
    gate.set()
    background.close()
    assert ran == ["a", "b"]


INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


@given(INTERVALS, st.integers(0, 60), st.integers(0, 60))
def test_idle_and_covered_time_match_a_brute_force_count(intervals, since, until):
    since, until = min(since, until), max(since, until)
    busy = {t for start, end in intervals for t in range(start, end)}
    log = BusyLog()
    for interval in sorted(intervals, key=lambda i: i[1]):
        log.add(*interval)
    assert log.idle_ns(since, until) == sum(t not in busy for t in range(since, until))
    assert covered_ns(intervals) == len(busy)


def test_time_before_the_recorded_intervals_counts_as_busy():
    log = BusyLog(max_intervals=2)
    for start in (0, 10, 20):
        log.add(start, start + 5)
    assert log.idle_ns(0, 30) == 5 + 5


def test_threads_start_when_a_job_finds_none_idle_and_end_when_idle():
    before, gate = threading.active_count(), threading.Event()

    def job():
        gate.wait(60)
        yield

    background = Background("test", lambda: None, num_threads=3, idle_s=0.01)
    for expected in (1, 2, 3, 3):
        background.submit(job(), pytest.fail)
        wait_for(lambda expected=expected: threading.active_count() == before + expected)
    gate.set()
    wait_for(lambda: threading.active_count() == before)
    background.submit(job(), pytest.fail)
    background.close()
    assert threading.active_count() == before


def test_a_sweep_whose_thread_did_not_start_starts_later(monkeypatch):
    swept = threading.Event()
    sweep = Sweep("test", 0.01, swept.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", no_thread)
        with pytest.raises(BusyError):
            sweep.start()
    sweep.start()
    assert swept.wait(60)
    sweep.close()
