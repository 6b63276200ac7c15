"""Simulated requests to models on several GPUs: when each is answered, by the controller's own choices.

A GPU runs one pass at a time, in order of arrival. A cold model loads before its first pass. All times are in seconds.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from sie_triton.controller.choice import Device, Resident, place, place_copy, victims
from sie_triton.pipeline.limits import CopyLimits
from sie_triton.pipeline.scheduling.copying import is_idle, wants_copy

PASS_S, LOAD_S, MIN_RESIDENCY_S = 0.02, 2.0, 5.0

# When a load that finds no room is tried again.
RETRY_S = 0.2

LIMITS = CopyLimits()


@dataclass
class Worker:
    """A model, or a copy of it, on a GPU: loaded at `ready`, with passes until `busy_until`."""

    size: int
    since: float
    ready: float
    used: float
    busy_until: float = 0.0
    is_copy: bool = False


@dataclass
class Gpu:
    """A GPU with `room` bytes; its passes so far end at `free_at`."""

    room: int
    workers: dict[int, Worker] = field(default_factory=dict)
    free_at: float = 0.0

    def as_device(self, number: int, now: float) -> Device:
        held = [
            Resident(str(name), each.size, _ns(each.used), _ns(each.since), each.busy_until > now, each.is_copy)
            for name, each in self.workers.items()
            if each.is_copy or each.ready <= now
        ]
        num_busy = sum(max(each.busy_until, each.ready) > now for each in self.workers.values())
        used = sum(each.size for each in self.workers.values())
        return Device(str(number), self.room - used, self.room, held, num_busy=num_busy)


class Traffic:
    """Requests to models of `sizes` on GPUs of `rooms`. `copies`: whether busy models get copies.

    After `run`, `latencies` has the seconds of each request, `num_loads` and `num_copies` what was loaded.
    """

    def __init__(self, sizes: Sequence[int], rooms: Sequence[int], *, copies: bool) -> None:
        self._sizes, self._copies = sizes, copies
        self._gpus = [Gpu(room) for room in rooms]
        self._starts: list[deque[float]] = [deque() for _ in sizes]
        self._crowded_since, self._joined, self._left = ([0.0] * len(sizes) for _ in range(3))
        self.latencies: list[float] = []
        self.num_loads = self.num_copies = 0

    def run(self, arrivals: Sequence[tuple[float, int]]) -> None:
        """Answer the requests that come at these times, in order, each to a model by its number."""
        waiting = [(at, number, at, model) for number, (at, model) in enumerate(arrivals)]
        heapify(waiting)
        while waiting:
            now, number, arrived, model = heappop(waiting)
            again = self._request(now, arrived, model)
            if again is not None:
                heappush(waiting, (again, number, arrived, model))

    def _request(self, now: float, arrived: float, model: int) -> float | None:
        """Run the pass of a request, or return when to come again."""
        if self._copies:
            self._look_after_copies(now, model)
        homes = [gpu for gpu in self._gpus if model in gpu.workers]
        if not homes:
            return now + (LOAD_S if self._load(now, model) else RETRY_S)
        ready = [gpu for gpu in homes if gpu.workers[model].ready <= now]
        if not ready:
            return min(gpu.workers[model].ready for gpu in homes)
        gpu = min(ready, key=lambda each: max(now, each.free_at))
        start = max(now, gpu.free_at)
        gpu.free_at = start + PASS_S
        worker = gpu.workers[model]
        worker.used = worker.busy_until = gpu.free_at
        self.latencies.append(gpu.free_at - arrived)
        self._note_crowd(now, model, start, len(ready))
        return None

    def _load(self, now: float, model: int) -> bool:
        """Load a model; False if there is no room for it now."""
        wanted, stay_ns = self._sizes[model], _ns(MIN_RESIDENCY_S)
        devices = self._devices(now)
        best = place([*devices.values()], wanted, now_ns=_ns(now), min_residency_ns=stay_ns)
        gpu = self._gpus[int(best.name)]
        leaving = victims(best.residents, wanted - best.free, now_ns=_ns(now), min_residency_ns=stay_ns)
        if best.free + sum(gpu.workers[int(name)].size for name in leaving) < wanted:
            return False
        for name in leaving:
            self._evict(now, gpu, int(name))
        gpu.workers[model] = Worker(wanted, now, now + LOAD_S, now)
        self.num_loads += 1
        return True

    def _evict(self, now: float, gpu: Gpu, model: int) -> None:
        """Let a copy go, or a model with its copies."""
        if gpu.workers.pop(model).is_copy:
            self._left[model] = now
            return
        for each in self._gpus:
            each.workers.pop(model, None)

    def _note_crowd(self, now: float, model: int, start: float, num_workers: int) -> None:
        starts = self._starts[model]
        starts.append(start)
        while starts and starts[0] <= now:
            starts.popleft()
        self._crowded_since[model] = (self._crowded_since[model] or now) if len(starts) > num_workers else 0.0

    def _look_after_copies(self, now: float, model: int) -> None:
        for gpu in self._gpus:
            idle = [
                name
                for name, each in gpu.workers.items()
                if each.is_copy
                and is_idle(_ns(now), last_pass_ns=_ns(each.used), num_passes=int(each.busy_until > now), limits=LIMITS)
            ]
            for name in idle:
                del gpu.workers[name]
        since, joined, left = (_ns(each[model]) for each in (self._crowded_since, self._joined, self._left))
        if wants_copy(_ns(now), crowded_since_ns=since, joined_ns=joined, left_ns=left, limits=LIMITS):
            self._copy(now, model)

    def _copy(self, now: float, model: int) -> None:
        able = [device for gpu, device in self._devices(now).items() if model not in self._gpus[gpu].workers]
        if (device := place_copy(able, self._sizes[model])) is not None:
            ready = now + LOAD_S
            copy = Worker(self._sizes[model], now, ready, ready, is_copy=True)
            self._gpus[int(device.name)].workers[model] = copy
            self._joined[model] = ready
            self.num_copies += 1

    def _devices(self, now: float) -> dict[int, Device]:
        return {number: gpu.as_device(number, now) for number, gpu in enumerate(self._gpus)}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
