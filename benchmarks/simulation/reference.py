"""The rules of the reference, SIE 0.3.1: one line for all models, which any worker fetches.

arrive → stream → a worker's batch → groups by model → answer
                                   → model not in memory → back to the stream after seconds, and a load

A request stays one message here, which is in the reference's favour: there, each text is one. The number of messages
that all workers may have at a time counts texts, as there.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.simulation.clock import Action, Clock
from benchmarks.simulation.load import Outcome, Request
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.rules import Book
from benchmarks.simulation.scaling import Demand

# Messages in the stream beyond which the gateway refuses; messages of a batch, and batches of a worker at a time.
MAX_IN_STREAM, MAX_FETCHED, MAX_BATCHES = 50_000, 64, 4

# Pauses before work comes again whose model is not in memory, or is being loaded; that of a lost worker. In seconds.
UNLOADED_S, LOADING_S, LOST_S = 5.0, 10.0, 30.0

# Deliveries after which work is dropped.
MAX_DELIVERIES = 20

# The wait for a batch to fill: bounds and target of the latency in ms, samples, and how fast it follows.
MIN_WAIT_MS, MAX_WAIT_MS, TARGET_MS, SAMPLES, MIN_SAMPLES, GAIN = 1.0, 20.0, 50.0, 200, 10, 0.2


class Wait:
    """Wait of a worker for a batch to fill, in ms.

    >>> wait = Wait()
    >>> for _ in range(MIN_SAMPLES): wait.add(latency_ms=20.0)
    >>> wait.ms
    7.0
    """

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=SAMPLES)
        self.ms = MIN_WAIT_MS

    def add(self, latency_ms: float) -> None:
        self._latencies.append(latency_ms)
        if len(self._latencies) >= MIN_SAMPLES and len(self._latencies) % MIN_SAMPLES == 0:
            self.ms = min(MAX_WAIT_MS, max(MIN_WAIT_MS, self.ms + GAIN * (TARGET_MS - median(self._latencies))))


@dataclass(eq=False)
class _Worker:
    """`batch` is being filled; `open` are the requests that it has."""

    machine: Machine
    wait: Wait = field(default_factory=Wait)
    batch: list[Request] = field(default_factory=list)
    batch_number: int = 0
    num_batches: int = 0
    is_draining: bool = False
    open: dict[Request, None] = field(default_factory=dict)

    @property
    def can_fetch(self) -> bool:
        return self.machine.is_up and not self.is_draining and self.num_batches < MAX_BATCHES


class Reference:
    """`sizes` has the bytes of each model."""

    def __init__(
        self,
        clock: Clock,
        parameters: Parameters,
        sizes: Mapping[str, int],
        book: Book,
    ) -> None:
        self._clock, self._parameters, self._sizes, self._book = clock, parameters, sizes, book
        self._stream: deque[Request] = deque()
        self._workers: dict[str, _Worker] = {}
        self._asking: dict[_Worker, None] = {}
        self._num_pending = 0
        self._max_pending = max(1, parameters.reference_max_pending // parameters.texts_of_request)
        self._max_fetched = max(1, MAX_FETCHED // parameters.texts_of_request)

    def choose(self, machine: Machine, num_bytes: int) -> Sequence[str]:
        """Choose the models that were loaded first: the reference's use of a model does not count."""
        chosen = []
        for name, each in sorted(machine.resident.items(), key=lambda each: each[1].since):
            if num_bytes > 0 and not each.is_leaving:
                chosen.append(name)
                num_bytes -= each.num_bytes
        return chosen

    def demand(self) -> Demand:
        """Return the metrics; the queue's depth is that of the workers, without the stream."""
        return self._book.demand(sum(len(each.open) for each in self._workers.values()))

    def arrive(self, request: Request) -> None:
        if all(each.is_draining for each in self._workers.values()):
            self._book.find_no_worker(request, self.arrive)
        elif len(self._stream) * self._parameters.texts_of_request > MAX_IN_STREAM:
            self._book.end(request, Outcome.REFUSED)
        else:
            self._pass(lambda: self._enter(request))

    def expire(self, request: Request) -> None:
        """The work of a client that no longer waits is done all the same."""

    def join(self, machine: Machine) -> None:
        worker = self._workers[machine.name] = _Worker(machine)
        self._asking[worker] = None
        self._deliver()

    def drain(self, machine: Machine, when_idle: Callable[[], object]) -> None:
        worker = self._workers[machine.name]
        worker.is_draining = True
        self._asking.pop(worker, None)
        self._when_drained(worker, when_idle)

    def _when_drained(self, worker: _Worker, when_idle: Callable[[], object]) -> None:
        if worker.open:
            self._clock.after(1.0, self._when_drained, worker, when_idle)
        else:
            self._workers.pop(worker.machine.name, None)
            when_idle()

    def lose(self, machine: Machine) -> None:
        worker = self._workers.pop(machine.name)
        self._asking.pop(worker, None)
        for request in worker.open:
            self._clock.after(LOST_S, self._again, request)

    def _pass(self, then: Action) -> None:
        self._clock.after(self._parameters.queue_s / 2, then)

    def _enter(self, request: Request) -> None:
        self._stream.append(request)
        self._deliver()

    def _again(self, request: Request) -> None:
        """Put work into the stream again that was given back, or whose worker is lost."""
        self._num_pending -= 1
        if request.num_tries < MAX_DELIVERIES:
            self._stream.appendleft(request)
        self._deliver()

    def _deliver(self) -> None:
        """Give work to the workers that ask for it, one after another."""
        while self._stream and self._asking and self._num_pending < self._max_pending:
            worker = next(iter(self._asking))
            del self._asking[worker]
            if not worker.can_fetch:
                continue
            request = self._stream.popleft()
            request.num_tries += 1
            self._num_pending += 1
            worker.open[request] = None
            worker.batch.append(request)
            if len(worker.batch) >= self._max_fetched:
                self._run(worker, worker.batch_number)
            elif len(worker.batch) == 1:
                self._clock.after(worker.wait.ms / 1000, self._run, worker, worker.batch_number)
            if worker.can_fetch:
                self._asking[worker] = None

    def _run(self, worker: _Worker, number: int) -> None:
        """Run the batch of that number, which is full or has waited."""
        if number != worker.batch_number or not worker.machine.is_up:
            return
        batch, worker.batch = worker.batch, []
        worker.batch_number += 1
        groups: dict[str, list[Request]] = {}
        for request in batch:
            groups.setdefault(request.model, []).append(request)
        running = {model: group for model, group in groups.items() if worker.machine.has(model)}
        for model, group in groups.items():
            if model not in running:
                self._give_back(worker, model, group)
        if running:
            worker.num_batches += 1
            left = [len(running)]
            for model, group in running.items():
                worker.machine.call(model, len(group), self._when_ended(worker, group, left))

    def _when_ended(self, worker: _Worker, group: Sequence[Request], left: list[int]) -> Callable[[float], None]:
        began = self._clock.now

        def ended(_: float) -> None:
            for request in group:
                del worker.open[request]
                self._num_pending -= 1
                worker.wait.add(1000 * (self._clock.now - began))
                self._pass(lambda request=request: self._book.end(request, Outcome.ANSWERED))
            left[0] -= 1
            if not left[0]:
                worker.num_batches -= 1
                if worker.can_fetch:
                    self._asking[worker] = None
            self._deliver()

        return ended

    def _give_back(self, worker: _Worker, model: str, group: Sequence[Request]) -> None:
        pause_s = LOADING_S if model in worker.machine.loading else UNLOADED_S
        if not worker.machine.loading:
            worker.machine.load(model)
        for request in group:
            del worker.open[request]
            self._clock.after(pause_s, self._again, request)
