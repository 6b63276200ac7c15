"""A machine: its processor, the models in its memory, their loads, and the calls of its Triton."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import exp

import numpy as np

from benchmarks.simulation.clock import Action, Clock
from benchmarks.simulation.parameters import Parameters

# Interval at which a load looks for memory, in seconds.
LOOK_S = 0.1

# Work of less than this is done, in seconds: sums of floating-point numbers are not exact.
NO_WORK_S = 1e-9


class Processor:
    """Runs `lanes` jobs at full speed; more jobs share it evenly (processor sharing).

    `_done_s` is the work that each job has got since the start, so that a job ends once it has grown by the job's own.
    """

    def __init__(self, clock: Clock, lanes: float) -> None:
        self._clock, self._lanes = clock, lanes
        self._jobs: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._done_s = 0.0
        self._looked_at = clock.now
        self._version = 0
        self.busy_s = 0.0  # time of lanes at work

    def run(self, work_s: float, then: Action) -> None:
        """Call `then` once the processor has done so much work, in seconds of one lane."""
        self._go_on()
        heappush(self._jobs, (self._done_s + work_s, next(self._numbers), then))
        self._wait()

    def stop(self) -> None:
        """Drop all jobs."""
        self._go_on()
        self._jobs.clear()
        self._version += 1

    def _go_on(self) -> None:
        passed_s, num = self._clock.now - self._looked_at, len(self._jobs)
        self._looked_at = self._clock.now
        if num:
            used = min(self._lanes, num)
            self.busy_s += passed_s * used
            self._done_s += passed_s * used / num

    def _wait(self) -> None:
        self._version += 1
        if self._jobs:
            num = len(self._jobs)
            left_s = (self._jobs[0][0] - self._done_s) * num / min(self._lanes, num)
            self._clock.after(left_s, self._due, self._version)

    def _due(self, version: int) -> None:
        if version != self._version:
            return
        self._go_on()
        ended: list[Action] = []
        while self._jobs and self._jobs[0][0] <= self._done_s + NO_WORK_S:
            ended.append(heappop(self._jobs)[2])
        self._wait()
        for then in ended:
            then()


@dataclass(slots=True)
class Loaded:
    """A model in memory. Times are in seconds of the clock; a leaving one ends with its last call."""

    num_bytes: int
    used_at: float
    since: float
    num_calls: int = 0
    is_leaving: bool = False


# Called with the time that a call took beyond its own work, in seconds.
Ended = Callable[[float], object]

# Returns the models to evict for so many bytes.
Chooser = Callable[["Machine", int], Sequence[str]]


class Machine:
    """`sizes` has the bytes of each model, and `choose` the models to evict."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        parameters: Parameters,
        sizes: Mapping[str, int],
        choose: Chooser,
        rng: np.random.Generator,
    ) -> None:
        self.clock, self.name, self._parameters, self._sizes = clock, name, parameters, sizes
        self._choose, self._rng = choose, rng
        self.processor = Processor(clock, parameters.lanes)
        self.resident: dict[str, Loaded] = {}
        self.loading: dict[str, int] = {}
        self.waiting: dict[str, list[tuple[int, Ended]]] = {}
        self._known: set[str] = set()  # models that have been loaded here before
        self._total_bytes = int(parameters.memory_gb * 1e9)
        self._used_bytes = 0
        self.num_loads = 0
        self.is_up = True

    @property
    def free_bytes(self) -> int:
        return self._total_bytes - self._used_bytes

    def has(self, model: str) -> bool:
        loaded = self.resident.get(model)
        return loaded is not None and not loaded.is_leaving

    def call(self, model: str, num_requests: int, ended: Ended) -> None:
        """Make one call of Triton; it waits for the model's load."""
        if self.has(model):
            self._run(model, num_requests, ended)
        else:
            self.waiting.setdefault(model, []).append((num_requests, ended))
            self.load(model)

    def load(self, model: str) -> None:
        """Load a model, unless that is in progress."""
        if model not in self.loading and not self.has(model):
            self.loading[model] = 0
            self._look_for_room(model)

    def is_busy(self, model: str) -> bool:
        return model in self.waiting or self.resident[model].num_calls > 0

    def stop(self) -> None:
        """End without notice."""
        self.is_up = False
        self.processor.stop()

    def _look_for_room(self, model: str) -> None:
        if not self.is_up:
            return
        size = min(self._sizes[model], self._total_bytes)
        leaving = sum(each.num_bytes for each in self.resident.values() if each.is_leaving)
        if size > self.free_bytes + leaving:
            for name in self._choose(self, size - self.free_bytes - leaving):
                self._evict(name)
        if size > self.free_bytes or model in self.resident:
            self.clock.after(LOOK_S, self._look_for_room, model)
            return
        self.loading[model] = size
        self._used_bytes += size
        self.num_loads += 1
        self.clock.after(self._load_s(model), self._loaded, model)

    def _load_s(self, model: str) -> float:
        of = self._parameters
        typical_s = of.load_s if model in self._known else of.first_load_s
        slow = of.slow_load_factor if self._rng.random() < of.slow_load_ratio else 1.0
        return typical_s * slow * exp(self._rng.normal(0.0, of.load_sigma))

    def _loaded(self, model: str) -> None:
        if not self.is_up:
            return
        self._known.add(model)
        now = self.clock.now
        self.resident[model] = Loaded(self.loading.pop(model), now, now)
        for num_requests, ended in self.waiting.pop(model, ()):
            self._run(model, num_requests, ended)

    def _run(self, model: str, num_requests: int, ended: Ended) -> None:
        loaded, began = self.resident[model], self.clock.now
        loaded.num_calls += 1
        loaded.used_at = began
        work_s = self._spread(self._parameters.call_s + self._parameters.request_s * num_requests)

        def done() -> None:
            if not self.is_up:
                return
            loaded.num_calls -= 1
            loaded.used_at = self.clock.now
            if loaded.is_leaving and not loaded.num_calls:
                self._free(model)
            ended(self.clock.now - began - work_s)

        self.processor.run(work_s, done)

    def _spread(self, work_s: float) -> float:
        """Return a random time with this mean."""
        sigma = self._parameters.call_sigma
        return work_s * exp(self._rng.normal(-sigma * sigma / 2, sigma)) if sigma else work_s

    def _evict(self, model: str) -> None:
        if self.resident[model].num_calls:
            self.resident[model].is_leaving = True
        else:
            self._free(model)

    def _free(self, model: str) -> None:
        self._used_bytes -= self.resident.pop(model).num_bytes
