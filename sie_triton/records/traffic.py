"""Counts and histograms of one process's requests, a part of its status record.

stages → status record → controller → Prometheus, status page
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.errors import KINDS, SIEError

# The verbs in the order of the rows of a histogram that tells them apart.
VERBS = ("encode", "score", "extract")

# Kinds of errors, in the order of their counters.
ERROR_KINDS = tuple(KINDS)

# Largest value that is counted, in a histogram's unit: 13 days. Sums of 64 bits have room for thousands of them.
MAX_VALUE = 1 << 50

MS = 1_000_000
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COSTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Histogram:
    """A histogram of integers, with a row for each verb, or without `of_verbs` one for all.

    `bounds` are the upper limits of its buckets; `unit` integers make 1 of them.
    """

    name: str
    doc: str
    bounds: tuple[float, ...]
    unit: int = 1
    of_verbs: bool = True

    @property
    def num_rows(self) -> int:
        return len(VERBS) if self.of_verbs else 1

    @property
    def limits(self) -> list[int]:
        return [round(bound * self.unit) for bound in self.bounds]


LATENCY = Histogram("sie_request_duration_seconds", "time of a request in Triton", SECONDS, 1000 * MS)
QUEUE = Histogram("sie_request_queue_seconds", "part of it before the first forward pass", SECONDS, 1000 * MS)
ITEMS = Histogram("sie_request_items", "items of a request", COUNTS)
TOKENS = Histogram("sie_request_tokens", "tokens, or rows of other features, of a request", COSTS)
BATCH_ITEMS = Histogram("sie_batch_items", "items of a forward pass", COUNTS, of_verbs=False)
BATCH_COST = Histogram("sie_batch_cost", "cost of a forward pass, in tokens for text", COSTS, of_verbs=False)
BATCH_FILL = Histogram("sie_batch_fill_ratio", "cost of a forward pass by that of a full one", SHARES, 1000, False)

HISTOGRAMS = (LATENCY, QUEUE, ITEMS, TOKENS, BATCH_ITEMS, BATCH_COST, BATCH_FILL)

# Counters, which only grow.
COUNTERS = (
    "num_loads",  # of a tokenizer or a worker
    "num_requests",  # accepted
    "num_refused",
    "num_expired",
    "num_cancelled",
    "num_replaced",  # worker processes that died and were replaced
    "num_deferred",
    "num_faults",  # errors outside the handling of a request, which was answered nevertheless
    "num_items",
    "num_sub_batches",
    "total_cost",
)

ARRAYS = (
    *((each.name, "<i8", (each.num_rows, len(each.bounds) + 1)) for each in HISTOGRAMS),
    *((f"{each.name}_sum", "<i8", (each.num_rows,)) for each in HISTOGRAMS),
    ("errors", "<i8", (len(ERROR_KINDS),)),
)

TOTALS = np.dtype([*((name, "<i8") for name in COUNTERS), *ARRAYS])

Numbers = npt.NDArray[np.int64]


class TrafficWriter:
    """Writes the histograms of a record, an array with one element that has ARRAYS, and counts its errors.

    The record is written as a row of integers, which is faster than by NumPy. One thread at a time calls a method.
    """

    def __init__(self, record: npt.NDArray[Any]) -> None:
        def place(field: str) -> int:
            return int(record.dtype.fields[field][1]) // 8  # type: ignore[index]

        self._numbers = memoryview(record.data).cast("B").cast("q")
        self._histograms = {each: (each.limits, place(each.name), place(f"{each.name}_sum")) for each in HISTOGRAMS}
        self._errors = place("errors")

    @classmethod
    def private(cls) -> "TrafficWriter":
        """Make a record that no other process sees."""
        return cls(np.zeros(1, TOTALS))

    def observe(self, values: Mapping[Histogram, int], verb: str = "") -> None:
        """Count a value in each histogram, in its unit; one beyond MAX_VALUE counts as that."""
        row = VERBS.index(verb) if verb else 0
        for histogram, value in values.items():
            limits, counts, sums = self._histograms[histogram]
            if not 0 <= value <= MAX_VALUE:
                value = min(max(value, 0), MAX_VALUE)
            self._numbers[counts + row * (len(limits) + 1) + bisect_left(limits, value)] += 1
            self._numbers[sums + row] += value

    def fail(self, error: SIEError) -> None:
        """Count an error by its kind."""
        self._numbers[self._errors + ERROR_KINDS.index(error.kind if error.kind in KINDS else SIEError.kind)] += 1


class Traffic:
    """Totals of any number of records. Belongs to one thread.

    The arrays are as in a record: counts by verb and bucket, sums by verb, errors by kind.
    """

    def __init__(self) -> None:
        self.total = np.zeros(1, TOTALS)[0]

    def add(self, record: np.void) -> None:
        for name in TOTALS.names or ():
            self.total[name] += record[name]

    def counts(self, histogram: Histogram) -> Numbers:
        found: Numbers = self.total[histogram.name]
        return found

    def sums(self, histogram: Histogram) -> Numbers:
        found: Numbers = self.total[f"{histogram.name}_sum"]
        return found

    @property
    def num_requests(self) -> int:
        return int(self.counts(LATENCY).sum())

    def rows(self, histogram: Histogram) -> Iterator[tuple[str, Numbers, float]]:
        """Yield the rows that are not empty: verb, counts by bucket, and sum in the unit of the bounds."""
        for verb, counts, total in zip(VERBS, self.counts(histogram), self.sums(histogram), strict=False):
            if counts.any():
                yield verb, counts, int(total) / histogram.unit

    @property
    def errors(self) -> Mapping[str, int]:
        """Errors by kind, those that occurred."""
        found = dict(zip(ERROR_KINDS, self.total["errors"].tolist(), strict=True))
        return {kind: count for kind, count in found.items() if count}


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Estimate a quantile of a histogram, linear within its bucket; None if it is empty.

    A quantile in the last bucket, which has no upper bound, is that bucket's lower bound.

    >>> quantile([0, 10, 0], [1.0, 3.0], 0.5)
    2.0
    >>> quantile([0, 0, 5], [1.0, 3.0], 0.5), quantile([0, 0, 0], [1.0, 3.0], 0.5)
    (3.0, None)
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below, lower = 0, 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if below + count >= wanted:
            return lower + (upper - lower) * (wanted - below) / count
        below, lower = below + count, upper
    return lower
