"""How much a device computes best at once: measured for each model, and kept.

All sizes are costs, in the unit in which the model's work is planned.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features
from sie_triton.engines import Engine
from sie_triton.families import Adapter
from sie_triton.inputs import InputKind
from sie_triton.measurements import Measurements
from sie_triton.scheduling.cost import Lengths

_log = logging.getLogger(__name__)

SMALLEST = 256
REPEATS = 5
PATIENCE_S = 5.0

# Items up to here may cost less than they are long.
CHEAPER_THAN_LONG = 512

# Beyond this a small request would wait too long for the sub-batch before it, whatever the gain.
LONGEST_S = 0.3

# What the server does for each sub-batch beside its pass, about: without it small ones look as good as large ones.
AROUND_S = 0.003

# The smallest size within this share of the best is taken.
GOOD_ENOUGH = 0.97


@dataclass(frozen=True, slots=True)
class Sampler:
    """Makes sub-batches of items of at most `max_length`, of which `features` are some; they cost what `cost` says."""

    features: Callable[[Sequence[int]], Features]
    kind: InputKind
    outputs: frozenset[str]
    max_length: int
    cost: Callable[[Lengths], npt.NDArray[np.int64]]

    def batch(self, total: int) -> Batch:
        """Items that cost `total` together, of lengths as clients send them, shortest first."""
        rng = np.random.default_rng(total)
        longest_of_all = min(self.max_length, max(total, CHEAPER_THAN_LONG))
        costs = self.cost(np.arange(1, longest_of_all + 1, dtype=np.int32))
        lengths: list[int] = []
        while total > 0:
            longest = int(np.searchsorted(costs, total, side="right"))
            lengths.append(min(longest, self.kind.sample_length(rng)))
            total -= int(costs[lengths[-1] - 1])
        lengths.sort()
        features = self.features(lengths)
        num_items = len(next(iter(features.values())).of_items)
        return Batch(features, np.zeros(num_items, np.bool_), self.outputs, [{}] * num_items)


@dataclass(slots=True)
class Device:
    """What `engine` computes on; `num_lanes` passes run there at once. `was_short` of memory in one that was tried."""

    engine: Engine
    num_lanes: int
    was_short: bool = False

    def shortest(self, forward: Callable[[Batch], object], batch: Batch, num_times: int) -> float:
        """Seconds of the fastest of so many passes; infinite if there is not enough memory for one."""
        try:
            return min(timed(forward, batch) for _ in range(num_times))
        except Exception as exc:
            if not self.engine.is_out_of_memory(exc):
                raise
        # Outside the handler: the exception holds on to the tensors of the failed pass.
        self.engine.free_unused_memory()
        self.was_short = True
        return math.inf

    def fitting(self, seconds: dict[int, float], failed: int) -> dict[int, float]:
        """Those of sizes of which each lane can run one at once, where one pass of size `failed` has no room."""
        smallest = min(seconds)
        if smallest == failed:
            raise MemoryError
        return {size: each for size, each in seconds.items() if size == smallest or size * self.num_lanes < failed}


def calibrate(adapter: Adapter, sampler: Sampler, max_cost: int, measurements: Measurements, device: Device) -> int:
    """Choose the adapter's faster path, where it has two, and the cost of one sub-batch that suits it best.

    What `measurements` knows is taken from there.
    """
    known = measurements.get("calibration")
    if known is None:
        rates = measure(adapter.forward, sampler, max_cost, device)
        best = choose(rates)
        path = faster_path(adapter, sampler.batch(best), device)
        known = {"sub_batch_cost": best, "path": path, "cost_per_s": rates}
        if not device.was_short:  # there may be more memory the next time
            measurements.put(calibration=known)
        _log.info("calibrated: %s", known)
    adapter.encoder.use(known["path"])
    return int(known["sub_batch_cost"])


def measure(forward: Callable[[Batch], object], sampler: Sampler, max_cost: int, device: Device) -> dict[int, float]:
    """Cost per second by the cost of a sub-batch, doubling until that takes too long or too much memory; with AROUND_S
    for each.

    The best of several rounds: a machine that is slow for a while is so for all sizes. MemoryError if none fits.
    """
    ended = perf_counter() + PATIENCE_S
    seconds: dict[int, float] = {}
    forward(sampler.batch(SMALLEST))  # the first pass compiles kernels
    for size in sizes(max_cost):
        seconds[size] = device.shortest(forward, sampler.batch(size), 2)
        if seconds[size] == math.inf:
            seconds = device.fitting(seconds, size)
            break
        if 2 * seconds[size] > LONGEST_S:
            break
    for _ in range(REPEATS - 2):
        for size in seconds:
            if perf_counter() < ended:
                seconds[size] = min(seconds[size], device.shortest(forward, sampler.batch(size), 1))
    return {size: round(size / (best + AROUND_S), 1) for size, best in seconds.items()}


def choose(rates: dict[int, float]) -> int:
    """
    >>> choose({256: 80.0, 512: 98.0, 1024: 100.0, 2048: 90.0})
    512
    """
    return min(size for size, rate in rates.items() if rate >= GOOD_ENOUGH * max(rates.values()))


def faster_path(adapter: Adapter, batch: Batch, device: Device) -> str:
    """The usual one, unless another is faster by more than chance: padded sub-batches can win where attention has no
    kernel for items of varying length."""
    encoder = adapter.encoder
    if len(encoder.paths) == 1:
        return encoder.path
    seconds = {}
    for path in encoder.paths:
        encoder.use(path)
        seconds[path] = device.shortest(adapter.forward, batch, 2)
    usual, fastest = encoder.paths[0], min(seconds, key=seconds.__getitem__)
    return fastest if seconds[fastest] < GOOD_ENOUGH * seconds[usual] else usual


def sizes(max_cost: int) -> Iterator[int]:
    size = SMALLEST
    while size < max_cost:
        yield size
        size *= 2
    yield max_cost


def timed(forward: Callable[[Batch], object], batch: Batch) -> float:
    started = perf_counter()
    forward(batch)
    return perf_counter() - started
