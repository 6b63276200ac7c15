"""The scheduler decides which work runs next, how much of it together, and how many sub-batches run in parallel.

A lane runs one sub-batch at a time. The two lanes of a GPU take turns on it: one prepares a forward pass, or hands on
rows, while the GPU computes the other's, so that the GPU need not wait; the budget of a pass is not divided between
them. A model with copies has the lanes of all its workers. On a CPU two lanes with half the threads each are faster
than one lane with all threads: the threads of a forward pass wait for each other at every layer, even for one that was
interrupted; parallel forward passes do not (measured in docs/decisions/batching.md). The lanes of a remote server share
no resources here: each is a request in flight.

A sub-batch is formed when a lane takes it, not when its requests arrive: while the lanes are busy, waiting work
accumulates. A sub-batch holds work of one class, in order of arrival. Requests with one item, whose caller waits for
it, go first; then requests with several items; then bulk requests in turns. A class that was passed over a few times is
next, so no class starves.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns
from typing import Generic

from sie_triton.contract.spec import REMOTE
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.job import J, JobItem, SubBatch, cost
from sie_triton.pipeline.scheduling.threads import started

MAX_CPU_LANES = 2

# To be measured: so many hide what lies between two passes of a GPU, about 3 ms.
GPU_LANES = 2

# Of somebody else's server, which batches what comes together itself.
REMOTE_LANES = 8

# How often, per lane, a waiting class may be overtaken.
PASSES = 2

# Minimum share of the budget to which a near deadline may reduce a sub-batch; less would waste the device.
SMALLEST = 1 / 4


class Scheduler(Generic[J]):
    """Runs sub-batches of at most `lane_budget` on the lanes: interactive work first, but bulk work never starves.

    Holds the waiting work, and one thread for each lane. Any thread may submit. Lanes call `run(sub_batch, threads)` in
    parallel, with the number of CPU threads that it may use. After an exception of `run` the lane calls `fault()` and
    continues, so `run` must report its errors to the requests itself. `device` is cpu, a GPU, or REMOTE. The items of a
    sub-batch are those of at most `max_requests` requests. Each of `num_workers` has `num_lanes` lanes. Since
    `crowded_since_ns` more work has waited than run, whenever a lane had taken some; 0 if that is not so.
    """

    def __init__(
        self,
        device: str,
        run: Callable[[SubBatch[J], int], None],
        budget: int,
        cpu: CpuBudget | None = None,
        fault: Callable[[], None] = lambda: None,
        max_requests: int = 64,
        gather_s: float = StageLimits.gather_s,
    ) -> None:
        self._gather_s = gather_s
        self.lane_budget = budget
        self._max_requests = max_requests
        self._run = run
        self._cpu = cpu or CpuBudget(0, list)
        self._is_remote = device == REMOTE
        own = min(MAX_CPU_LANES, self._cpu.total) if device == "cpu" else GPU_LANES
        self.num_lanes = REMOTE_LANES if self._is_remote else own
        self.num_workers = 1
        # Work that one pass can take is divided among lanes that are idle, on a GPU among workers.
        self._lanes_of_share = 1 if device in ("cpu", REMOTE) else self.num_lanes
        # A sub-batch alone takes so many lanes: those of a CPU, for their threads.
        self._num_alone = self.num_lanes if device == "cpu" else 1
        lock = threading.Lock()
        self._changed, self._freed = threading.Condition(lock), threading.Condition(lock)
        self._idle = self.num_lanes
        self._closed = False
        self._single: deque[JobItem[J]] = deque()
        self._several: deque[JobItem[J]] = deque()
        self._queued_cost = self._bulk_cost = self._running_cost = 0
        self.crowded_since_ns = 0
        self._bulk: deque[deque[SubBatch[J]]] = deque()
        self._since_several = self._since_bulk = 0
        self._pace = Pace()
        self._fault = fault
        self._lanes: list[threading.Thread] = []
        self._num_running = 0  # lanes that have not ended
        self._start_lanes(self.num_lanes)

    @property
    def num_shares(self) -> int:
        """Number of parts into which work is divided that one pass can take, if all lanes are idle."""
        return self._num_all // self._lanes_of_share

    @property
    def _num_all(self) -> int:
        return self.num_lanes * self.num_workers

    def use_workers(self, num_workers: int) -> None:
        """Use the lanes of `num_workers` workers. Surplus lanes end after their current sub-batch.

        Raise BusyError, and change nothing, if the system starts no thread now.
        """
        with self._changed:
            more = self.num_lanes * (num_workers - self.num_workers)
            self._start_lanes(more)
            self.num_workers = num_workers
            self._idle += more  # below 0 while lanes run that are to end
            self._changed.notify_all()

    def _start_lanes(self, count: int) -> None:
        self._lanes = [lane for lane in self._lanes if lane.is_alive()]
        for _ in range(count):
            self._lanes.append(started(self._lane, f"lane-{self._num_running}", self._fault))
            self._num_running += 1

    @contextmanager
    def reserve_idle_device(self) -> Iterator[int]:
        """Reserve the idle device for the calling thread. Give the CPU threads it may use, 0 if there is other work."""
        with self._changed:
            taken = self._num_alone if self._idle == self._num_all and not self._has_work() else 0
            self._idle -= taken
        try:
            yield self._cpu.threads() if taken else 0
        finally:
            if taken:
                self._now_idle(taken)

    @contextmanager
    def reserve_lane(self, wait_s: float) -> Iterator[int]:
        """Reserve a lane for the calling thread, whose work is as quick as that of the lanes.

        Wait up to `wait_s` until a lane is idle and nothing is queued, unless bulk work is. Give the CPU threads of a
        lane, 0 if the lane is not granted.
        """
        with self._changed:
            self._freed.wait_for(lambda: self._bulk or self._has_free_lane(), wait_s)
            taken = int(self._has_free_lane())
            self._idle -= taken
        try:
            yield self.threads(1) if taken else 0
        finally:
            if taken:
                self._now_idle(taken)

    def _has_free_lane(self) -> bool:
        return self._idle > 0 and not self._has_work()

    def submit(self, items: Sequence[JobItem[J]]) -> None:
        """Queue requests of one or several items. If a lane's budget is queued already, wait up to `gather_s` first."""
        if not items:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._queued_cost < self.lane_budget, self._gather_s)
            for item in items:
                self._queue_of(item).append(item)
            self._queued_cost += sum(map(cost, items))
            self._look_for_crowd()
            self._changed.notify_all()

    def submit_late(self, items: Sequence[JobItem[J]]) -> None:
        """Queue requests that arrived before the waiting ones, in front of them."""
        with self._changed:
            for item in reversed(items):
                self._queue_of(item).appendleft(item)
            self._queued_cost += sum(map(cost, items))
            self._changed.notify_all()

    def submit_bulk(self, sub_batches: Sequence[SubBatch[J]]) -> None:
        """Queue one bulk request; several take turns."""
        with self._changed:
            self._bulk.append(deque(sub_batches))
            self._bulk_cost += sum(cost(item) for each in sub_batches for item in each)
            self._look_for_crowd()
            self._changed.notify_all()

    def threads(self, num_lanes: int) -> int:
        """Return the number of CPU threads for `num_lanes` lanes."""
        return max(1, self._cpu.threads() * num_lanes // self.num_lanes)

    def close(self) -> None:
        """Run all submitted work, then end the lanes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.join()

    def _lane(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run the next sub-batch; False once closed. Keep no reference to a job, which may hold much memory."""
        if (taken := self._next()) is None:
            return False
        sub_batch, num_lanes, taken_cost = taken
        began = monotonic_ns()
        try:
            self._run(sub_batch, self.threads(num_lanes))
            # A remote server takes about as long for a short item as for a quarter of a sub-batch.
            least = int(SMALLEST * self.lane_budget) if self._is_remote else 0
            self._pace.add(max(least, taken_cost), monotonic_ns() - began)
        finally:
            self._now_idle(num_lanes, taken_cost)
        return True

    def _next(self) -> tuple[SubBatch[J], int, int] | None:
        """Wait for a sub-batch. Return it, its number of lanes (all of a CPU, if alone) and its cost."""
        with self._changed:
            while True:
                self._changed.wait_for(self._has_news)
                if self._num_running > self._num_all or not self._has_work():
                    self._num_running -= 1
                    return None
                sub_batch = self._take_bulk() if self._bulk_is_next() else self._take()
                taken_cost = sum(map(cost, sub_batch))
                self._running_cost += taken_cost
                self._look_for_crowd()
                if sub_batch:
                    alone = self._idle == self._num_all and not self._has_work()
                    num_lanes = self._num_alone if alone else 1
                    self._idle -= num_lanes
                    self._changed.notify_all()
                    return sub_batch, num_lanes, taken_cost

    def _has_news(self) -> bool:
        """True if a lane that waits must take work, or end."""
        if self._num_running > self._num_all:
            return True
        return self._idle > 0 if self._has_work() else self._closed

    def _look_for_crowd(self) -> None:
        is_crowded = self._queued_cost + self._bulk_cost > self._running_cost
        self.crowded_since_ns = (self.crowded_since_ns or monotonic_ns()) if is_crowded else 0

    def _queue_of(self, item: JobItem[J]) -> deque[JobItem[J]]:
        return self._single if len(item[0].costs) == 1 else self._several

    def _has_work(self) -> bool:
        return bool(self._single or self._several or self._bulk)

    def _drop_over(self) -> None:
        """Drop waiting work that is already answered or cannot be ready by its deadline."""
        now = monotonic_ns()
        ready_ns = now + self._pace.expected_ns(min(SMALLEST * self.lane_budget, self._queued_cost))
        waiting = [*self._single, *self._several]
        if any(job.is_late(ready_ns) for job, _ in waiting):
            # The pace is an estimate: if it leaves no work, work whose deadline has not passed is tried.
            limit_ns = now if all(job.is_late(ready_ns) for job, _ in waiting) else ready_ns
            for queue in (self._single, self._several):
                in_time = [each for each in queue if not each[0].is_late(limit_ns)]
                queue.clear()
                queue.extend(in_time)
            self._queued_cost = sum(map(cost, [*self._single, *self._several]))

    def _bulk_is_next(self) -> bool:
        is_overdue = self._since_bulk >= PASSES * self._num_all
        return bool(self._bulk) and (is_overdue or not (self._single or self._several))

    def _take(self) -> SubBatch[J]:
        """Take as much of one class as budget and deadlines allow; an even share if several lanes are idle."""
        self._drop_over()
        is_overdue = self._since_several >= PASSES * self._num_all
        queue = self._several if is_overdue and self._several else self._single or self._several
        if not queue:
            return []
        taken = self._fitting(queue)
        for _ in taken:
            queue.popleft()
        self._queued_cost -= sum(map(cost, taken))
        self._since_several = 0 if queue is self._several else self._since_several + 1
        self._since_bulk += 1
        return sorted(taken, key=cost)

    def _fitting(self, queue: Collection[JobItem[J]]) -> list[JobItem[J]]:
        """Return the first items that fit, at least one."""
        num_shares = max(1, self._idle // self._lanes_of_share)
        share = -(-sum(map(cost, queue)) // num_shares) + max(map(cost, queue)) - 1
        left, total, now = float(min(self.lane_budget, share)), 0, monotonic_ns()
        taken: list[JobItem[J]] = []
        jobs: set[int] = set()
        for item in queue:
            jobs.add(id(item[0]))
            if taken and (total + cost(item) > left or len(jobs) > self._max_requests):
                break
            taken.append(item)
            total += cost(item)
            in_time = self._pace.cost_within(item[0].deadline_ns - now)
            left = min(left, max(SMALLEST * self.lane_budget, in_time))
        return taken

    def _take_bulk(self) -> SubBatch[J]:
        request = self._bulk.popleft()
        sub_batch = request.popleft()
        self._bulk_cost -= sum(map(cost, sub_batch))
        if sub_batch[0][0].is_late(monotonic_ns()):
            self._bulk_cost -= sum(cost(item) for each in request for item in each)
            return []
        if request:
            self._bulk.append(request)
        self._since_bulk = 0
        return sub_batch

    def _now_idle(self, num_lanes: int, ended_cost: int = 0) -> None:
        with self._changed:
            self._idle += num_lanes
            self._running_cost -= ended_cost
            self._freed.notify()
            # Without work, woken lanes would only take the interpreter lock from the thread that returns a result.
            if self._has_news():
                self._changed.notify_all()


class Pace:
    """Speed of the latest sub-batches, estimated from the slower ones.

    A lane adds each sub-batch that it has run; the lane that forms the next sub-batch reads the estimate. No method
    raises.
    """

    def __init__(self, num_kept: int = 16) -> None:
        self._ns_per_cost: deque[float] = deque(maxlen=num_kept)

    def add(self, cost: int, ns: int) -> None:
        self._ns_per_cost.append(ns / max(1, cost))

    def expected_ns(self, cost: float) -> int:
        """Return the expected duration: at the 75th percentile of durations per cost; 0 until measured."""
        return int(cost * self._slow())

    def cost_within(self, ns: int) -> float:
        """Return the cost that is expected to be done within `ns`; infinite until measured."""
        return ns / self._slow() if self._ns_per_cost else math.inf

    def _slow(self) -> float:
        ordered = sorted(self._ns_per_cost)
        return ordered[len(ordered) * 3 // 4] if ordered else 0.0
