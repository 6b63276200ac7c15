"""The requests of a simulation: Poisson arrivals, models and tenants by Zipf's law, and how the rate changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import sin, tau

import numpy as np
from numpy.typing import NDArray

from sie_triton.errors import InputError

# Bursts: every so many seconds, for so many seconds, so many times the mean rate.
BURST_EVERY_S, BURST_S, BURST_FACTOR = 60.0, 10.0, 3.0

# The largest and smallest rates of a day are above and below the mean by this share.
DAY_RATIO = 0.8

# Requests of one simulation.
MAX_REQUESTS = 20_000_000


class Outcome(Enum):
    """`LATE`: the client's time passed without an answer."""

    ANSWERED = auto()
    REFUSED = auto()
    LATE = auto()


@dataclass(slots=True, eq=False)
class Request:
    """A request on its way. Times are in seconds of the clock.

    `num_ahead` counts the requests before it at the gateway, `num_tries` deliveries to a worker.
    """

    model: str
    tenant: str
    arrived_at: float
    ends_at: float
    num_ahead: int = 0
    num_tries: int = 0
    waited_s: float = 0.0
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Arrivals:
    """Arrays with one entry per request: time in seconds, and the numbers of its model and tenant."""

    times: NDArray[np.float64]
    models: NDArray[np.int64]
    tenants: NDArray[np.int64]
    names: Sequence[str]

    @property
    def ends_at(self) -> float:
        """Time of the last request, in seconds."""
        return float(self.times[-1]) if len(self.times) else 0.0

    def requests(self, deadline_s: float) -> Iterator[Request]:
        for at, model, tenant in zip(self.times.tolist(), self.models.tolist(), self.tenants.tolist(), strict=True):
            yield Request(self.names[model], f"tenant-{tenant}", at, at + deadline_s)


def steady(_: float) -> float:
    return 1.0


def bursts(at: float) -> float:
    quiet = (BURST_EVERY_S - BURST_FACTOR * BURST_S) / (BURST_EVERY_S - BURST_S)
    return BURST_FACTOR if at % BURST_EVERY_S >= BURST_EVERY_S - BURST_S else quiet


@dataclass(frozen=True, slots=True)
class Scenario:
    """`factor` returns the rate relative to its mean, at a share of the duration or at a time in seconds.

    `is_scaled`: the number of machines follows the scaling rules, and begins with `first_workers`, all of them if it is
    negative. `has_losses`: machines are lost without notice. `warm_up_ratio` of the duration is not counted.
    """

    factor: Callable[[float], float] = steady
    max_factor: float = 1.0
    is_scaled: bool = False
    first_workers: int = -1
    has_losses: bool = False
    warm_up_ratio: float = 0.5


def day(share: float) -> float:
    """Rate at a share of a day, which begins at its lowest rate."""
    return 1.0 + DAY_RATIO * sin(tau * (share - 0.25))


SCENARIOS: Mapping[str, Scenario] = {
    "steady": Scenario(),
    "bursts": Scenario(bursts, BURST_FACTOR),
    "day": Scenario(day, 1.0 + DAY_RATIO, is_scaled=True, first_workers=1, warm_up_ratio=0.0),
    "spot": Scenario(has_losses=True),
    "from-zero": Scenario(is_scaled=True, first_workers=0, warm_up_ratio=0.0),
}


def zipf(number: int, exponent: float) -> NDArray[np.float64]:
    """Return the shares of so many models, the most popular first.

    >>> [round(float(share), 2) for share in zipf(3, 1.0)]
    [0.55, 0.27, 0.18]
    """
    weights = 1.0 / np.arange(1, number + 1) ** exponent
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def arrivals(
    rate: float,
    seconds: float,
    num_models: int,
    *,
    exponent: float,
    num_tenants: int,
    scenario: str,
    rng: np.random.Generator,
) -> Arrivals:
    """Return the arrivals of `seconds` at a mean of `rate` requests per second; InputError if there are too many."""
    of = SCENARIOS[scenario]
    if (expected := rate * of.max_factor * seconds) > MAX_REQUESTS:
        raise InputError(f"{expected:,.0f} requests are too many (at most {MAX_REQUESTS:,}); use fewer --seconds")
    times = np.sort(rng.uniform(0.0, seconds, rng.poisson(expected)))
    places = times / seconds if scenario == "day" else times
    factors = np.array([of.factor(place) for place in places.tolist()]) if of.max_factor > 1 else np.ones(len(times))
    times = times[rng.uniform(0.0, of.max_factor, len(times)) < factors]
    models = rng.choice(num_models, len(times), p=zipf(num_models, exponent))
    tenants = rng.choice(num_tenants, len(times), p=zipf(num_tenants, exponent))
    return Arrivals(times, models, tenants, model_names(num_models))


def model_names(number: int) -> list[str]:
    return [f"org__model-{i}" for i in range(number)]
