"""Order of jobs if all are queued before a lane takes any: the scheduler alone decides it."""

import threading

import pytest

from sie_triton.pipeline.scheduling import scheduler as module
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.scheduler import PASSES, Scheduler, cost
from tests.pure.pipeline.scheduling.test_lanes import Timed
from tests.pure.pipeline.scheduling.test_scheduler import Slots, wait_for

BLOCK = 77  # a sub-batch of this cost takes its lane until the end


class Order:
    """A scheduler whose lanes start with `begin`; records the sub-batches in the order in which they ran."""

    def __init__(
        self, monkeypatch, device: str = "cpu", cores: int = 1, max_requests: int = 64, gather_s: float = 0.0
    ) -> None:
        self.ran: list[list[int]] = []
        self._begin, self._end = threading.Event(), threading.Event()
        real = module.started
        monkeypatch.setattr(module, "started", lambda run, *rest: real(lambda: self._begin.wait() and run(), *rest))
        self.scheduler = Scheduler(
            device, self._run, 10, CpuBudget(cores, list), max_requests=max_requests, gather_s=gather_s
        )

    def submit(self, *requests: list[int]) -> None:
        for costs in requests:
            self.scheduler.submit(list(Slots(*costs)))

    def submit_bulk(self, *costs: int) -> None:
        self.scheduler.submit_bulk([list(Slots(each)) for each in costs])

    def begin(self) -> None:
        self._begin.set()

    def run(self) -> list[list[int]]:
        self.begin()
        self._end.set()
        self.scheduler.close()
        return self.ran

    def _run(self, sub_batch, threads):
        costs = [cost(slot) for slot in sub_batch]
        if costs == [BLOCK]:
            assert self._end.wait(20)
        else:
            self.ran.append(costs)


@pytest.fixture
def one_lane(monkeypatch) -> Order:
    return Order(monkeypatch)


def test_a_multi_item_job_runs_after_every_two_single_jobs(one_lane):
    one_lane.submit(*[[10]] * 6, *[[5, 5]] * 3)
    assert one_lane.run() == [[10], [10], [5, 5]] * 3


def test_a_pass_takes_the_items_of_a_limited_number_of_requests(monkeypatch):
    limited = Order(monkeypatch, max_requests=2)
    limited.submit(*[[1]] * 5, *[[1, 1, 1]] * 3)
    assert limited.run() == [[1, 1], [1, 1], [1] * 6, [1], [1] * 3]


def test_a_bulk_job_runs_after_every_two_interactive_jobs(one_lane):
    one_lane.submit_bulk(91, 92, 93)
    one_lane.submit(*[[10]] * 6)
    assert PASSES == 2
    assert one_lane.run() == [[10], [10], [91], [10], [10], [92], [10], [10], [93]]


def test_the_whole_device_is_not_given_while_work_waits(one_lane):
    """No lane has taken the waiting work yet."""
    one_lane.submit([3])
    with one_lane.scheduler.reserve_idle_device() as threads:
        assert threads == 0
    assert one_lane.run() == [[3]]


def test_dropped_jobs_are_not_waited_for(monkeypatch):
    """Otherwise the next arrivals would wait behind an empty queue."""
    lanes = Order(monkeypatch)
    lanes.scheduler.submit(list(Timed(10, deadline_ns=1)))
    lanes.begin()
    wait_for(lambda: not lanes.scheduler._has_work())
    lanes.scheduler._gather_s = 30.0
    submitting = threading.Thread(target=lanes.submit, args=([7],), daemon=True)
    submitting.start()
    submitting.join(10)
    assert not submitting.is_alive()
    assert lanes.run() == [[7]]


@pytest.mark.parametrize("waiting", ["several", "bulk"])
def test_each_lane_may_pass_a_class_twice(monkeypatch, waiting):
    """One of two lanes is occupied until the end, so the other runs everything else, in order."""
    lanes = Order(monkeypatch, "cpu", cores=2)
    if waiting == "bulk":
        lanes.submit_bulk(8)
    else:
        lanes.submit([4, 4])
    lanes.submit([BLOCK], [1], *[[10]] * 6)
    lanes.begin()
    wait_for(lambda: len(lanes.ran) == 8)
    order = [BLOCK, *map(sum, lanes.run())]
    assert order.index(8) == 2 * PASSES
