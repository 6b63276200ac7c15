"""Lanes: shares, threads, those of the calling thread and of several workers. test_scheduler_order.py has the order."""

import threading
import time
import weakref
from contextlib import contextmanager

import pytest

from sie_triton.contract.spec import REMOTE
from sie_triton.pipeline.scheduling import scheduler as module
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.pipeline.scheduling.scheduler import REMOTE_LANES, Scheduler, cost
from tests.pure.pipeline.scheduling.test_scheduler import no_file_handle
from tests.support.controller import wait_for

MS = 1_000_000

BLOCK = 77  # a pass of this cost takes its lane until the end


class Slots:
    """A job as the scheduler sees it: the costs of its items, and its deadline."""

    def __init__(self, *costs: int, deadline_ns: int = NEVER) -> None:
        self.costs, self.deadline_ns = costs, deadline_ns

    def is_late(self, now_ns):
        return self.deadline_ns <= now_ns

    def __iter__(self):
        return ((self, i) for i in range(len(self.costs)))


class Lanes:
    """Scheduler that records its sub-batches and threads; passes block until `release` is set.

    By the clock `now`, in ns, a pass takes `pass_time` per unit of cost.
    """

    def __init__(self, budget: int = 10, device: str = "cpu", cores: int = 1, records=list, **more) -> None:
        self.ran: list[list[int]] = []
        self.threads: list[int] = []
        self.release, self._end = threading.Event(), threading.Event()
        self.pass_time = 0
        self.now = 10**12
        cpu = CpuBudget(cores, records)
        self.scheduler = Scheduler(device, self._run, budget, cpu, **{"gather_s": 0.0, **more})

    def submit(self, *requests: list[int], deadline_ns: int = NEVER) -> None:
        for costs in requests:
            self.scheduler.submit(list(Slots(*costs, deadline_ns=deadline_ns)))

    def submit_bulk(self, *costs: int) -> None:
        self.scheduler.submit_bulk([list(Slots(each)) for each in costs])

    @contextmanager
    def held(self):
        """Occupy all lanes, so that requests submitted inside are all queued when the lanes are free."""
        wait_for(self.all_idle)
        with self.scheduler.reserve_idle_device() as threads:
            assert threads
            yield

    def finish(self) -> list[list[int]]:
        self.release.set()
        self._end.set()
        self.scheduler.close()
        return self.ran

    def all_idle(self) -> bool:
        with self.scheduler.reserve_idle_device() as threads:
            return threads > 0

    def _run(self, sub_batch, threads):
        self.ran.append([cost(slot) for slot in sub_batch])
        self.threads.append(threads)
        assert (self._end if self.ran[-1] == [BLOCK] else self.release).wait(60)
        self.now += self.pass_time * sum(self.ran[-1])


def test_a_remote_server_gets_further_requests_while_it_answers():
    """A single request takes one lane and leaves the others to later requests."""
    lanes = Lanes(device=REMOTE)
    for num_running in range(1, REMOTE_LANES + 1):
        lanes.submit([1])
        wait_for(lambda n=num_running: len(lanes.ran) == n)  # no pass has ended
    lanes.submit([1])
    assert len(lanes.ran) == REMOTE_LANES
    assert len(lanes.finish()) == REMOTE_LANES + 1


def test_a_pass_is_prepared_while_a_gpu_computes_another():
    """A single request leaves the other lane to later requests, which the calling thread must not compute itself."""
    lanes = Lanes(device="cuda:0")
    assert lanes.scheduler.num_lanes == 2
    lanes.submit([1])
    wait_for(lambda: len(lanes.ran) == 1)
    with lanes.scheduler.reserve_idle_device() as threads:
        assert not threads  # the device is not idle
    lanes.submit([2])
    wait_for(lambda: len(lanes.ran) == 2)
    lanes.submit([3])
    assert lanes.finish() == [[1], [2], [3]]


def test_a_pass_on_the_calling_thread_leaves_a_gpu_lane_free():
    lanes = Lanes(device="cuda:0")
    with lanes.held():
        lanes.submit([1])
        wait_for(lambda: lanes.ran == [[1]])
    lanes.finish()


def test_idle_lanes_of_a_gpu_do_not_divide_what_one_pass_can_take():
    """The GPU would compute the halves one after the other."""
    lanes = Lanes(device="cuda:0")
    lanes.scheduler.submit([slot for _ in range(6) for slot in Slots(1)])
    assert lanes.finish() == [[1] * 6]


@pytest.mark.parametrize(("device", "least"), [(REMOTE, 100), ("cpu", 1)])
def test_remote_pass_times_count_for_a_minimum_cost(monkeypatch, device, least):
    """Otherwise the deadline of a slightly longer item would seem unreachable."""
    lanes = Lanes(budget=400, device=device)
    monkeypatch.setattr(module, "monotonic_ns", lambda: lanes.now)
    lanes.pass_time = 60 * MS
    lanes.submit([1])
    lanes.finish()
    assert lanes.scheduler._pace.expected_ns(least) == 60 * MS


def test_submit_blocks_while_a_full_budget_is_waiting(monkeypatch):
    lanes = Lanes(gather_s=30.0)
    with lanes.held():
        lanes.submit([10])
        next_one = threading.Thread(target=lanes.submit, args=([10],), daemon=True)
        next_one.start()
        time.sleep(0.1)
        assert next_one.is_alive()
    next_one.join(60)
    assert not next_one.is_alive()
    assert lanes.finish() == [[10], [10]]


def test_lanes_that_are_idle_together_share_what_waits():
    lanes = Lanes(device="cpu", cores=2)
    with lanes.held():
        lanes.submit(*[[1]] * 6)
    wait_for(lambda: len(lanes.ran) == 2)
    assert lanes.finish() == [[1] * 3, [1] * 3]


def test_a_lone_lane_gets_all_threads_and_concurrent_lanes_a_share():
    lanes = Lanes(budget=1, device="cpu", cores=8)
    assert [lanes.scheduler.threads(1), lanes.scheduler.threads(2)] == [4, 8]
    lanes.submit([1])
    wait_for(lambda: len(lanes.ran) == 1)
    lanes.release.set()
    with lanes.held():
        lanes.release.clear()
        lanes.submit([1], [1])
    wait_for(lambda: len(lanes.ran) == 3)
    lanes.finish()
    assert lanes.threads == [8, 4, 4]


def test_one_lane_alone_still_has_a_thread():
    lanes = Lanes(budget=1, device="cpu", cores=1)
    assert lanes.scheduler.num_lanes == 1
    assert lanes.scheduler.threads(1) == 1
    lanes.finish()


# --- a lane for the calling thread


def test_the_calling_thread_takes_an_idle_lane_with_its_threads():
    lanes = Lanes(cores=4)
    with lanes.scheduler.reserve_lane(0) as threads, lanes.scheduler.reserve_lane(0) as others:
        assert (threads, others) == (2, 2)
        with lanes.scheduler.reserve_lane(0) as third:
            assert not third
    assert lanes.all_idle()
    lanes.finish()


def test_the_calling_thread_waits_until_a_lane_is_free_and_nothing_is_queued():
    lanes = Lanes()
    lanes.submit([1])
    wait_for(lambda: lanes.ran == [[1]])
    lanes.submit([2])
    threading.Timer(0.05, lanes.release.set).start()
    with lanes.scheduler.reserve_lane(3600) as threads:
        assert threads == 1
        assert lanes.ran == [[1], [2]]
    lanes.finish()


def test_what_is_idle_is_left_to_queued_work():
    lanes = Lanes()
    wait_for(lanes.all_idle)
    lanes.scheduler._single.append(next(iter(Slots(1))))  # the lane is not notified
    with lanes.scheduler.reserve_lane(0) as threads, lanes.scheduler.reserve_idle_device() as all_threads:
        assert (threads, all_threads) == (0, 0)
    assert lanes.finish() == [[1]]


def test_a_lane_is_not_granted_after_the_wait():
    lanes = Lanes()
    lanes.submit([1])
    wait_for(lambda: lanes.ran == [[1]])
    with lanes.scheduler.reserve_lane(0.01) as threads:
        assert not threads
    lanes.finish()


def test_nobody_waits_for_a_lane_while_bulk_work_is_queued():
    """Bulk work takes each lane that becomes free, unless small work is queued: it must be, at once."""
    lanes = Lanes()
    lanes.submit_bulk(11, 12)
    wait_for(lambda: lanes.ran == [[11]])
    with lanes.scheduler.reserve_lane(3600) as threads:
        assert not threads
    lanes.finish()


# --- of several workers


def test_each_worker_more_brings_its_lanes_and_takes_them_along():
    lanes = Lanes(device="cuda:0")
    lanes.submit(*[[10]] * 7)
    wait_for(lambda: len(lanes.ran) == 2)
    lanes.scheduler.use_workers(3)
    wait_for(lambda: len(lanes.ran) == 6)
    lanes.scheduler.use_workers(1)  # the passes that run go on, and no other begins before there is a lane for it
    lanes.submit([10])
    lanes.release.set()
    wait_for(lambda: sum(lane.is_alive() for lane in lanes.scheduler._lanes) == 2)
    lanes.scheduler.use_workers(2)
    assert sum(lane.is_alive() for lane in lanes.scheduler._lanes) == 4
    lanes.submit([10])
    assert lanes.finish() == [[10]] * 9


def test_lanes_of_a_worker_that_goes_take_no_more_work():
    ran: list[int] = []
    may_end = threading.Semaphore(0)
    scheduler = Scheduler(
        "cuda:0", lambda items, _: ran.append(len(items)) or may_end.acquire(timeout=60), 10, CpuBudget(1, list)
    )
    scheduler.use_workers(2)
    for _ in range(6):
        scheduler.submit(list(Slots(10)))
    wait_for(lambda: len(ran) == 4)
    scheduler.use_workers(1)
    may_end.release(2)
    wait_for(lambda: sum(lane.is_alive() for lane in scheduler._lanes) == 2)
    assert len(ran) == 4
    may_end.release(4)
    scheduler.close()
    assert len(ran) == 6


def test_the_device_is_idle_once_all_workers_are():
    lanes = Lanes(device="cuda:0")
    lanes.scheduler.use_workers(2)
    lanes.submit([10])
    wait_for(lambda: lanes.ran)
    with lanes.scheduler.reserve_idle_device() as threads:
        assert not threads
    lanes.release.set()
    wait_for(lanes.all_idle)
    lanes.scheduler.use_workers(1)
    wait_for(lanes.all_idle)
    lanes.finish()


def test_waiting_work_is_divided_among_idle_workers():
    lanes = Lanes(budget=100, device="cuda:0")
    lanes.scheduler.use_workers(2)
    lanes.scheduler.submit([item for _ in range(8) for item in Slots(10)])
    wait_for(lambda: len(lanes.ran) == 2)
    assert sorted(map(len, lanes.finish())) == [4, 4]


def test_a_model_is_crowded_while_more_waits_than_runs():
    lanes = Lanes(device="cuda:0")
    assert not lanes.scheduler.crowded_since_ns
    with lanes.held():
        lanes.submit(*[[10]] * 5)
    wait_for(lambda: len(lanes.ran) == 2)
    since = lanes.scheduler.crowded_since_ns
    assert since > 0
    lanes.scheduler.use_workers(2)
    wait_for(lambda: len(lanes.ran) == 4)
    assert not lanes.scheduler.crowded_since_ns
    lanes.finish()


def test_bulk_work_crowds_a_model_until_it_is_done():
    lanes = Lanes(device="cuda:0")
    with lanes.held():
        lanes.submit_bulk(*[10] * 5)
    wait_for(lambda: len(lanes.ran) == 2)
    assert lanes.scheduler.crowded_since_ns
    assert len(lanes.finish()) == 5
    assert not lanes.scheduler.crowded_since_ns


def test_an_idle_lane_holds_no_sub_batch():
    lanes, slots = Lanes(), Slots(1)
    lanes.release.set()
    left = weakref.ref(slots)
    lanes.scheduler.submit(list(slots))
    del slots
    wait_for(lambda: left() is None)
    lanes.finish()


def test_no_sub_batch_is_lost_while_the_records_cannot_be_read():
    lanes = Lanes(records=no_file_handle)
    lanes.submit([9], [8], [7])
    assert lanes.finish() == [[9], [8], [7]]
