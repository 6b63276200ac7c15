"""Interface of the rules of a cluster, and what ours and the reference share: outcomes, and the way to the queue."""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.load import Outcome, Request
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.scaling import Demand
from sie_triton.cluster.limits import GatewayLimits

# Interval at which the requests whose time has passed are looked for, in seconds.
EXPIRE_S = 0.1


class Rules(Protocol):
    """The rules of a gateway, a queue and workers."""

    def choose(self, machine: Machine, num_bytes: int) -> Sequence[str]:
        """Return the models that a machine evicts for so many bytes."""

    def arrive(self, request: Request) -> None:
        """Take a request, or refuse it."""

    def expire(self, request: Request) -> None:
        """Forget a request that has just been ended because its time has passed."""

    def join(self, machine: Machine) -> None:
        """Use a machine that is ready."""

    def drain(self, machine: Machine, when_idle: Callable[[], object]) -> None:
        """Give a machine no more work; call `when_idle` once it has none."""

    def lose(self, machine: Machine) -> None:
        """Do without a machine that has ended without notice."""

    def demand(self) -> Demand:
        """Return the metrics that the scaling rules read."""


class Book:
    """Outcomes of all requests, each noted once; an answer to a request that is over counts for nothing.

    `counts` are those of all requests; `counted`, and the answers' `latencies_s`, those of arrivals since `since_s`.
    """

    def __init__(self, clock: Clock, parameters: Parameters, since_s: float) -> None:
        self.clock, self._parameters, self._since_s = clock, parameters, since_s
        self.counts: Counter[Outcome] = Counter()
        self.counted: Counter[Outcome] = Counter()
        self.latencies_s = array("d")
        self.num_open = 0
        self._wanted_at = float("-inf")
        self._num_rejected, self._rejected_since = 0, 0.0
        self._in_time: deque[tuple[float, Request]] = deque()
        self.first_answer_at, self.last_answer_at = float("inf"), 0.0

    def begin(self, request: Request) -> None:
        self.num_open += 1
        self._in_time.append((request.ends_at, request))

    def end(self, request: Request, outcome: Outcome) -> None:
        if request.outcome is not None:
            return
        request.outcome = outcome
        self.num_open -= 1
        self.counts[outcome] += 1
        self._num_rejected += outcome is Outcome.REFUSED
        is_counted = request.arrived_at >= self._since_s
        if is_counted:
            self.counted[outcome] += 1
        if outcome is Outcome.ANSWERED:
            self.first_answer_at = min(self.first_answer_at, self.clock.now)
            self.last_answer_at = self.clock.now
            if is_counted:
                self.latencies_s.append(self.clock.now - request.arrived_at)

    def find_no_worker(self, request: Request, arrive: Callable[[Request], object]) -> None:
        """Let a client ask again later, which found no worker."""
        self._wanted_at = self.clock.now
        if self.clock.now + self._parameters.retry_s >= request.arrived_at + self._parameters.patience_s:
            self.end(request, Outcome.REFUSED)
            return
        request.ends_at = float("inf")
        self.clock.after(self._parameters.retry_s, self._again, request, arrive)

    def _again(self, request: Request, arrive: Callable[[Request], object]) -> None:
        request.ends_at = self.clock.now + self._parameters.deadline_s
        self._in_time.append((request.ends_at, request))
        arrive(request)

    def expired(self) -> Sequence[Request]:
        """End the requests whose time has passed, and return them."""
        found = []
        while self._in_time and self._in_time[0][0] <= self.clock.now:
            _, request = self._in_time.popleft()
            if request.outcome is None and request.ends_at <= self.clock.now:
                self.end(request, Outcome.LATE)
                found.append(request)
        return found

    def demand(self, queue_depth: float) -> Demand:
        """Return the metrics since the last call."""
        seconds = max(1e-9, self.clock.now - self._rejected_since)
        rejected = self._num_rejected / seconds
        self._num_rejected, self._rejected_since = 0, self.clock.now
        return Demand(queue_depth, float(self.clock.now - self._wanted_at <= GatewayLimits.demand_s), 0.0, rejected)
