"""How much a device computes best at once: measured for each model, and kept."""

import logging
from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from sie_triton.adapters.base import PACKED, PADDED, Adapter, PackedBatch
from sie_triton.measurements import Measurements

_log = logging.getLogger(__name__)

SMALLEST = 256  # tokens
REPEATS = 5
PATIENCE_S = 5.0

# Beyond this a small request would wait too long for the sub-batch before it, whatever the gain.
LONGEST_S = 0.3

# The smallest size within this share of the best is taken.
GOOD_ENOUGH = 0.97


def calibrate(adapter: Adapter, max_length: int, max_tokens: int, measurements: Measurements) -> int:
    """Choose the adapter's faster path, where it has two, and the tokens of one sub-batch that suit it best.

    What `measurements` knows is taken from there.
    """
    known = measurements.get("calibration")
    if known is None:
        rates = measure(adapter.forward, max_length, max_tokens)
        best = choose(rates)
        known = {"sub_batch_tokens": best, "path": faster_path(adapter, best, max_length), "tokens_per_s": rates}
        measurements.put(calibration=known)
        _log.info("calibrated: %s", known)
    adapter.encoder.use(known["path"])
    return int(known["sub_batch_tokens"])


def measure(forward: Callable[[PackedBatch], object], max_length: int, max_tokens: int) -> dict[int, float]:
    """Tokens per second by tokens of a sub-batch, doubling until that takes too long.

    The best of several rounds: a machine that is slow for a while is so for all sizes.
    """
    ended = perf_counter() + PATIENCE_S
    seconds: dict[int, float] = {}
    forward(sample(SMALLEST, max_length))  # the first pass compiles kernels
    for tokens in sizes(max_tokens):
        seconds[tokens] = min(timed(forward, sample(tokens, max_length)) for _ in range(2))
        if 2 * seconds[tokens] > LONGEST_S:
            break
    for _ in range(REPEATS - 2):
        for tokens in seconds:
            if perf_counter() < ended:
                seconds[tokens] = min(seconds[tokens], timed(forward, sample(tokens, max_length)))
    return {tokens: round(tokens / best, 1) for tokens, best in seconds.items()}


def choose(rates: dict[int, float]) -> int:
    """
    >>> choose({256: 80.0, 512: 98.0, 1024: 100.0, 2048: 90.0})
    512
    """
    return min(size for size, rate in rates.items() if rate >= GOOD_ENOUGH * max(rates.values()))


def faster_path(adapter: Adapter, tokens: int, max_length: int) -> str:
    """Padded sub-batches can win where attention has no kernel for items of varying length."""
    if adapter.encoder.path == PADDED:
        return PADDED
    batch, seconds = sample(tokens, max_length), {}
    for path in (PACKED, PADDED):
        adapter.encoder.use(path)
        seconds[path] = min(timed(adapter.forward, batch) for _ in range(2))
    return PADDED if seconds[PADDED] < GOOD_ENOUGH * seconds[PACKED] else PACKED


def sizes(max_tokens: int) -> Iterator[int]:
    size = SMALLEST
    while size < max_tokens:
        yield size
        size *= 2
    yield max_tokens


def sample(tokens: int, max_length: int) -> PackedBatch:
    """Items of log-normal length, as texts are, shortest first."""
    rng = np.random.default_rng(tokens)
    lengths: list[int] = []
    while (room := tokens - sum(lengths)) > 0:
        lengths.append(min(room, max_length, 1 + round(rng.lognormal(3.8, 0.8))))
    lengths.sort()
    return PackedBatch(np.ones(tokens, np.int32), np.array(lengths, np.int32), np.zeros(len(lengths), np.int32))


def timed(forward: Callable[[PackedBatch], object], batch: PackedBatch) -> float:
    started = perf_counter()
    forward(batch)
    return perf_counter() - started
