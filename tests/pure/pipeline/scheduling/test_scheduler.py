"""Background threads, the budget of CPU threads, and clocks."""

import errno
import os
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.errors import BusyError
from sie_triton.pipeline.scheduling import cpu_budget as budget
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.threads import Sweep
from sie_triton.pipeline.stages.inference_job import BusyLog, covered_ns
from tests.support.controller import wait_for
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
