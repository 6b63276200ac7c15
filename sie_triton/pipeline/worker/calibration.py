"""The cost of a sub-batch at which a device is most efficient: measured once for each model, and cached.

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
from sie_triton.contract.arrays import Ints
from sie_triton.engines import Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.models.families import Adapter
from sie_triton.models.inputs import InputKind
from sie_triton.models.inputs.text import TextInput
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.system.host.core_time import seconds_on_core
from sie_triton.system.host.process_memory import peak_growth

_log = logging.getLogger(__name__)

SMALLEST = 256
REPEATS = 5

# Items up to this length may cost less than their length.
CHEAPER_THAN_LONG = 512

# The smallest size whose rate is at least this share of the best rate is chosen.
GOOD_ENOUGH = 0.97


@dataclass(frozen=True, slots=True)
class Sampler:
    """Generator of sub-batches: `features` makes features of items of given lengths, `cost` their costs by length."""

    features: Callable[[Sequence[int]], Features]
    kind: InputKind
    outputs: frozenset[str]
    max_length: int
    cost: Callable[[Ints], npt.NDArray[np.int64]]

    def batch(self, total: int, *, is_longest: bool = False) -> Batch:
        """Return items that cost `total` together, with lengths typical of clients, shortest first.

        With `is_longest`, texts are as long as the model reads: no sub-batch of this cost takes more memory.
        """
        rng = np.random.default_rng(total)
        longest_of_all = min(self.max_length, max(total, CHEAPER_THAN_LONG))
        costs = self.cost(np.arange(1, longest_of_all + 1, dtype=np.int32))
        lengths: list[int] = []
        while total > 0:
            longest = max(1, int(np.searchsorted(costs, total, side="right")))
            is_full = is_longest and self.kind.name == TextInput.name
            lengths.append(longest if is_full else min(longest, self.kind.sample_length(rng)))
            total -= int(costs[lengths[-1] - 1])
        lengths.sort()
        features = self.features(lengths)
        num_items = len(next(iter(features.values())).of_items)
        return Batch(features, np.zeros(num_items, np.bool_), self.outputs, [{}] * num_items)


@dataclass(slots=True)
class MeasuredDevice:
    """The device of `engine`, on which `num_lanes` passes run at once. `was_short`: a pass ran out of memory."""

    engine: Engine
    num_lanes: int
    was_short: bool = False

    def shortest(self, forward: Callable[[Batch], object], batch: Batch, num_times: int) -> float:
        """Return the seconds of the fastest of `num_times` passes; infinity if one runs out of memory."""
        try:
            return min(timed(forward, batch) for _ in range(num_times))
        except Exception as exc:
            if not self.engine.is_out_of_memory(exc):
                raise
        # Outside the handler, because the exception references tensors of the failed pass.
        self.engine.free_unused_memory()
        self.was_short = True
        return math.inf

    def pass_bytes(self, forward: Callable[[Batch], object], sampler: Sampler, cost: int) -> int:
        """Return the main memory that the largest pass of this cost takes, in bytes; 0 on a GPU."""
        if self.engine.device != "cpu":
            return 0
        batches = [sampler.batch(cost), sampler.batch(cost, is_longest=True)]
        self.engine.free_unused_memory()
        return peak_growth(lambda: [self.shortest(forward, batch, 1) for batch in batches])

    def fitting(self, seconds: dict[int, float], failed: int) -> dict[int, float]:
        """Return the sizes that all lanes can run at once, if one pass of size `failed` runs out of memory.

        The smallest size is kept in any case; MemoryError if that is the one that failed.
        """
        smallest = min(seconds)
        if smallest == failed:
            raise MemoryError
        return {size: each for size, each in seconds.items() if size == smallest or size * self.num_lanes < failed}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The most efficient size of a sub-batch."""

    sub_batch_cost: int
    cost_per_s: float  # that one lane then computes
    least_s: float  # of a lane's shortest pass, over one item of cost 1
    pass_bytes: int = 0  # main memory that one pass of that cost takes, measured on a CPU


def calibrate(
    adapter: Adapter, sampler: Sampler, max_cost: int, measurements: Measurements, device: MeasuredDevice
) -> Calibration:
    """Choose the adapter's faster path, if it has two, and find the size of a sub-batch.

    An earlier result in `measurements` for as many lanes is reused: the more lanes, the less work each may take.
    """
    name = calibration_name(device.num_lanes)
    known = measurements.get(name)
    if known is None or "pass_bytes" not in known:
        rates = measure(adapter.forward, sampler, max_cost, device)
        best = choose(rates)
        path = faster_path(adapter, sampler.batch(best), device)
        adapter.encoder.use(path)
        least_s = round(device.shortest(adapter.forward, sampler.batch(1), REPEATS), 6)
        taken = device.pass_bytes(adapter.forward, sampler, best)
        known = {"sub_batch_cost": best, "path": path, "cost_per_s": rates, "least_s": least_s, "pass_bytes": taken}
        if not device.was_short:  # the next start may have more memory
            measurements.put(**{name: known})
        _log.info("calibrated: %s", known)
    adapter.encoder.use(known["path"])
    best = int(known["sub_batch_cost"])
    rates = {int(size): float(rate) for size, rate in known["cost_per_s"].items()}
    return Calibration(best, rates[best], float(known["least_s"]), int(known["pass_bytes"]))


def calibration_name(num_lanes: int) -> str:
    """Key of the result in the measurements."""
    return f"calibration_{num_lanes}_lanes"


def measure(
    forward: Callable[[Batch], object],
    sampler: Sampler,
    max_cost: int,
    device: MeasuredDevice,
    limits: WorkerLimits = WorkerLimits(),
) -> dict[int, float]:
    """Map the cost of a sub-batch to the cost per second, including `around_pass_s` of overhead.

    Costs double until a pass takes too long or runs out of memory; MemoryError if none fits. Each rate is the best of
    several rounds: a machine that is slow for a while is slow for all sizes of that round.
    """
    ended = perf_counter() + limits.calibration_s
    seconds: dict[int, float] = {}
    forward(sampler.batch(SMALLEST))  # the first pass compiles kernels
    for size in sizes(max_cost):
        seconds[size] = device.shortest(forward, sampler.batch(size), 2)
        if seconds[size] == math.inf:
            seconds = device.fitting(seconds, size)
            break
        if 2 * seconds[size] > limits.longest_pass_s:
            break
    for _ in range(REPEATS - 2):
        for size in seconds:
            if perf_counter() < ended:
                seconds[size] = min(seconds[size], device.shortest(forward, sampler.batch(size), 1))
    return {size: round(size / (best + limits.around_pass_s), 1) for size, best in seconds.items()}


def choose(rates: dict[int, float]) -> int:
    """
    >>> choose({256: 80.0, 512: 98.0, 1024: 100.0, 2048: 90.0})
    512
    """
    return min(size for size, rate in rates.items() if rate >= GOOD_ENOUGH * max(rates.values()))


def faster_path(adapter: Adapter, batch: Batch, device: MeasuredDevice) -> str:
    """Return the usual path, unless another is faster by more than chance.

    Padded sub-batches can win where attention has no kernel for items of varying length.
    """
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
    """Return the seconds of a pass. Other models compute meanwhile, and the result is kept: their time is not in it."""
    return seconds_on_core(lambda: forward(batch))
