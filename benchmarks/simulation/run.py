"""Run simulations: arrivals and rules and machines → a result for each number of workers, load and set of rules."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import nan

import numpy as np

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.load import SCENARIOS, Arrivals, Outcome, Request, arrivals
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.ours import Ours
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.reference import Reference
from benchmarks.simulation.rules import EXPIRE_S, Book, Rules
from sie_triton.errors import InputError

OURS, REFERENCE = "ours", "reference"
RULES: Mapping[str, Callable[..., Rules]] = {OURS: Ours, REFERENCE: Reference}

# Interval of reports of progress, in seconds of the clock.
PROGRESS_S = 1.0

# Time after the last request's deadline within which everything must have ended, in seconds.
SETTLE_S = 1.0

# Shortest duration that a figure is divided by, in seconds.
MIN_S = 1e-9

MAX_WORKERS, MAX_MODELS, MAX_SECONDS = 10_000, 10_000, 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one simulation. Requests of the warm-up count for loads, costs and utilisation only.

    `load` is the offered share of the machines' capacity, `utilisation` that of their processors' time at work.
    Latencies are those of answers, in seconds; nan if there is none. `first_answer_s` is the time of the first answer;
    infinite if there is none.
    """

    rules: str
    scenario: str
    num_workers: int
    load: float
    requests_per_s: float
    num_requests: int
    num_answered: int
    num_refused: int
    num_late: int
    p50_s: float
    p99_s: float
    utilisation: float
    num_loads: int
    loads_per_request: float
    cost_per_million_texts: float
    first_answer_s: float
    num_lost_machines: int
    most_machines: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All simulations of a run: each number of workers with each load, under each set of rules."""

    parameters: Parameters
    scenario: str = "steady"
    workers: Sequence[int] = (10, 100, 1000)
    loads: Sequence[float] = (0.3, 0.6, 0.9)
    rules: Sequence[str] = (OURS, REFERENCE)
    num_models: int = 200
    seconds: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if a value is out of its bounds."""
        if self.scenario not in SCENARIOS:
            raise InputError.at("scenario", f"must be one of {', '.join(SCENARIOS)}; got {self.scenario!r}")
        if not self.rules or not RULES.keys() >= {*self.rules}:
            raise InputError.at("rules", f"must be of {', '.join(RULES)}; got {', '.join(self.rules)!r}")
        if not self.workers or not all(1 <= number <= MAX_WORKERS for number in self.workers):
            raise InputError.at("workers", f"must be from 1 to {MAX_WORKERS:,}")
        if not self.loads or not all(0 < load <= 10 for load in self.loads):
            raise InputError.at("load", "must be above 0 and at most 10, as a share of the capacity")
        if not 1 <= self.num_models <= MAX_MODELS:
            raise InputError.at("models", f"must be from 1 to {MAX_MODELS:,}")
        if not 1 <= self.seconds <= MAX_SECONDS:
            raise InputError.at("seconds", f"must be from 1 to {MAX_SECONDS:,.0f}")

    @property
    def num_simulations(self) -> int:
        return len(self.workers) * len(self.loads) * len(self.rules)

    def results(self, progress: Callable[[float], object] = lambda _: None) -> Iterator[Result]:
        """Run all simulations, and yield the result of each; `progress` gets how many are done, with a share of one."""
        num_done = 0
        for num_workers, load in product(self.workers, self.loads):
            of = self.parameters
            asked = arrivals(
                load * num_workers * of.capacity,
                self.seconds,
                self.num_models,
                exponent=of.zipf,
                num_tenants=of.num_tenants,
                scenario=self.scenario,
                rng=np.random.default_rng([self.seed, num_workers, int(load * 1000)]),
            )
            since_s = SCENARIOS[self.scenario].warm_up_ratio * self.seconds
            for rules in self.rules:
                simulation = Simulation(of, asked, num_workers, rules, self.scenario, self.seed, since_s)
                simulation.run(partial(_tell, progress, num_done))
                num_done += 1
                yield simulation.result(load)


class Simulation:
    """Run of one set of rules with some arrivals. The same arguments give the same result.

    Requests that arrive before `since_s` are not counted.
    """

    def __init__(
        self,
        parameters: Parameters,
        asked: Arrivals,
        num_workers: int,
        rules: str,
        scenario: str = "steady",
        seed: int = 0,
        since_s: float = 0.0,
    ) -> None:
        self._parameters, self._asked, self._num_workers = parameters, asked, num_workers
        self._name, self._scenario, self._since_s = rules, scenario, since_s
        self._clock = Clock()
        self.book = Book(self._clock, parameters, since_s)
        sizes = sizes_of(parameters, asked.names, np.random.default_rng([seed, 1]))
        self._rules = RULES[rules](self._clock, parameters, sizes, self.book)
        loads, losses = np.random.default_rng([seed, 2]), np.random.default_rng([seed, 3])

        def made(name: str) -> Machine:
            return Machine(self._clock, name, parameters, sizes, self._rules.choose, loads)

        of = SCENARIOS[scenario]
        self._fleet = Fleet(self._clock, parameters, self._rules, made, losses, has_losses=of.has_losses)
        first = num_workers if of.first_workers < 0 else min(num_workers, of.first_workers)
        self._fleet.begin(first)
        if of.is_scaled:
            self._fleet.scale(first, num_workers)
        self._busy_s = 0.0

    def run(self, progress: Callable[[float], object] = lambda _: None) -> None:
        """Run until all requests are over; `progress` gets the share that is done."""
        ends_at = self._asked.ends_at
        self._clock.each(EXPIRE_S, self._expire)
        self._clock.each(PROGRESS_S, lambda: progress(min(1.0, self._clock.now / ends_at) if ends_at else 1.0))
        self._follow(self._asked.requests(self._parameters.deadline_s))
        self._clock.run(ends_at)
        self._paid_s, self._ready_s = self._fleet.times()
        self._busy_s = sum(machine.processor.busy_s for machine in self._fleet.machines)
        while self.book.num_open:
            self._clock.run(self._clock.now + SETTLE_S)

    def _follow(self, requests: Iterator[Request]) -> None:
        """Let the next request arrive at its time, and then those after it."""
        if (request := next(requests, None)) is not None:
            self._clock.after(request.arrived_at - self._clock.now, self._arrive, request, requests)

    def _arrive(self, request: Request, requests: Iterator[Request]) -> None:
        self.book.begin(request)
        self._rules.arrive(request)
        self._follow(requests)

    def _expire(self) -> None:
        for request in self.book.expired():
            self._rules.expire(request)

    def result(self, load: float) -> Result:
        """Return the result of a simulation that has run; `load` is the offered share of the capacity."""
        counted, of = self.book.counted, self._parameters
        p50_s, p99_s = np.percentile(self.book.latencies_s, (50, 99)) if self.book.latencies_s else (nan, nan)
        num_loads = sum(machine.num_loads for machine in self._fleet.machines)
        texts = self.book.counts[Outcome.ANSWERED] * of.texts_of_request
        return Result(
            rules=self._name,
            scenario=self._scenario,
            num_workers=self._num_workers,
            load=load,
            requests_per_s=counted[Outcome.ANSWERED] / max(MIN_S, self._asked.ends_at - self._since_s),
            num_requests=counted.total(),
            num_answered=counted[Outcome.ANSWERED],
            num_refused=counted[Outcome.REFUSED],
            num_late=counted[Outcome.LATE],
            p50_s=float(p50_s),
            p99_s=float(p99_s),
            utilisation=float(self._busy_s / max(MIN_S, of.lanes * self._ready_s)),
            num_loads=num_loads,
            loads_per_request=num_loads / max(1, self.book.counts.total()),
            cost_per_million_texts=self._paid_s / 3600 * of.price_per_hour / texts * 1e6 if texts else nan,
            first_answer_s=self.book.first_answer_at,
            num_lost_machines=self._fleet.num_lost,
            most_machines=self._fleet.largest,
        )


def _tell(progress: Callable[[float], object], num_done: int, share: float) -> None:
    progress(num_done + share)


def sizes_of(parameters: Parameters, names: Sequence[str], rng: np.random.Generator) -> Mapping[str, int]:
    """Return the bytes of each model."""
    gigabytes = parameters.model_gb * np.exp(rng.normal(0.0, parameters.size_sigma, len(names)))
    return {name: int(size * 1e9) for name, size in zip(names, gigabytes, strict=True)}
