"""Jobs: requests that wait for the device, with their items, the costs of these, and the rows computed so far.

A cost is an integer in units of about one token's forward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features, Ragged, Rows, Spans
from sie_triton.contract.arrays import Array, Ints
from sie_triton.contract.parameters import ParameterValue
from sie_triton.errors import OutOfMemory, SIEError

NEVER = 2**63 - 1


def deadline_ns(arrived_ns: int, timeout_us: int) -> int:
    """Return the deadline in monotonic nanoseconds; NEVER if the client set no timeout, or one of centuries."""
    return min(NEVER, arrived_ns + timeout_us * 1000) if timeout_us else NEVER


def token_cost(lengths: Ints) -> npt.NDArray[np.int64]:
    """Return the length as cost: 1 per token.

    >>> token_cost(np.array([3, 512], np.int32)).tolist()
    [3, 512]
    """
    return lengths.astype(np.int64)


def attention_cost(lengths: Ints) -> npt.NDArray[np.int64]:
    """Return length² / 512, rounded up: twice the length costs four times as much.

    >>> attention_cost(np.array([256, 512], np.int32)).tolist()
    [128, 512]
    """
    return -(-(lengths.astype(np.int64) ** 2) // 512)


COST_FUNCTIONS: Mapping[str, Callable[[Ints], npt.NDArray[np.int64]]] = {
    "tokens": token_cost,
    "attention": attention_cost,
}


@dataclass(slots=True, eq=False)
class Job:
    """A request that waits for the device.

    The owner of the job writes the fields: first the stage, then one lane at a time, under the stage's lock.
    """

    features: Features
    is_query: Sequence[bool]
    costs: Sequence[int]  # one per item, in the model's unit
    wanted: frozenset[str] = frozenset()  # output types that the forward pass must compute
    deadline_ns: int = NEVER  # monotonic
    options: Mapping[str, ParameterValue] | None = None  # parameters that the family reads in the forward pass
    lora: str = ""  # the worker's name of the items' LoRA adapter; empty: none
    spans: Sequence[Spans] = ()  # of items with a row for each chunk: the tokens of each row; empty: one row an item
    is_bulk: bool = False
    rows: list[Rows] = field(default_factory=list)
    error: SIEError | None = None
    ran: list[tuple[int, int]] = field(default_factory=list)  # start and end of each forward pass, in monotonic ns
    num_items: int = field(init=False)
    num_missing: int = field(init=False)
    _bounds: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_items = self.num_missing = len(self.costs)
        self.rows = [{}] * self.num_items

    @property
    def is_done(self) -> bool:
        return self.error is not None or not self.num_missing

    def is_late(self, now_ns: int) -> bool:
        """True if the job has failed or its deadline has passed, so that no more of it should be computed."""
        return self.error is not None or self.deadline_ns <= now_ns

    def rows_of(self, feature: Ragged, item: int) -> npt.NDArray[np.generic]:
        """Return the rows of an item in one of `features`."""
        values, lengths = feature
        if self.num_items == 1:
            return values
        if lengths is None:
            return values[item : item + 1]
        bounds = self._bounds.get(id(lengths))
        if bounds is None:
            bounds = self._bounds[id(lengths)] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return values[bounds[item] : bounds[item + 1]]


J = TypeVar("J", bound=Job)
JobItem = tuple[J, int]  # one item of one job
SubBatch = Sequence[tuple[J, int]]  # in packing order


def cost(job_item: JobItem[J]) -> int:
    job, item = job_item
    return job.costs[item]


def items_of(jobs: Iterable[J]) -> list[JobItem[J]]:
    return [(job, item) for job in jobs for item in range(job.num_items)]


def total_cost(items: SubBatch[J]) -> int:
    return sum([job.costs[item] for job, item in items])


def pack(items: SubBatch[J]) -> Batch:
    first = items[0][0]
    is_query, options, loras = [], [], []
    wanted, deadline_ns = first.wanted, first.deadline_ns
    for job, item in items:
        is_query.append(job.is_query[item])
        options.append(job.options or {})
        loras.append(job.lora)
        wanted |= job.wanted
        deadline_ns = max(deadline_ns, job.deadline_ns)
    is_whole = len(items) == first.num_items and [*items] == items_of([first])
    return Batch(
        features=first.features if is_whole else _end_to_end(items),
        is_query=np.array(is_query),
        outputs=wanted,
        options=[] if first.options is None else options,
        loras=loras if any(loras) else [],
        spans=_spans(items),
        deadline_ns=deadline_ns,
    )


def _spans(items: SubBatch[J]) -> list[Spans]:
    if not any(job.spans for job, _ in items):
        return []
    return [job.spans[item] if job.spans else () for job, item in items]


def _end_to_end(items: SubBatch[J]) -> Features:
    lengths: dict[int, npt.NDArray[np.int32]] = {}  # features that share a lengths array still share one
    features = {}
    for name, (_, own) in items[0][0].features.items():
        values = np.concatenate([job.rows_of(job.features[name], item) for job, item in items])
        if own is not None and id(own) not in lengths:
            lengths[id(own)] = np.array([_length(job.features[name], item) for job, item in items], np.int32)
        features[name] = Ragged(values, None if own is None else lengths[id(own)])
    return features


def _length(feature: Ragged, item: int) -> int:
    assert feature.lengths is not None
    return int(feature.lengths[item])


def again(
    items: SubBatch[J], error: SIEError, halvings: int, at_fault: tuple[type[SIEError], ...]
) -> list[SubBatch[J]]:
    """Return parts of a failed sub-batch to retry separately; empty if retrying cannot help.

    After OutOfMemory the parts are halves, at most `halvings` times. After an error of `at_fault`, which one of the
    jobs may have caused, each job is a part, so that it does not fail the others.
    """
    if isinstance(error, OutOfMemory) and len(items) > 1 and halvings > 0:
        middle = len(items) // 2
        return [items[:middle], items[middle:]]
    jobs = dict.fromkeys(job for job, _ in items)
    if isinstance(error, at_fault) and len(jobs) > 1:
        return [[each for each in items if each[0] is job] for job in jobs]
    return []


def settle(items: SubBatch[J], result: Rows | SIEError, ran: tuple[int, int], ragged: Mapping[str, str]) -> list[J]:
    """Store each row in its job, or the error in all jobs. Return the jobs that are done with this.

    `ragged`: name of each ragged tensor → name of its lengths.
    """
    jobs = {job: None for job, _ in items if not job.is_done}
    if isinstance(result, SIEError):
        for job in jobs:
            job.error = result
    else:
        for (job, item), row in zip(items, rows_of(result, len(items), ragged, _spans(items)), strict=True):
            job.rows[item] = row
            job.num_missing -= 1
    for job in jobs:
        job.ran.append(ran)
    return [job for job in jobs if job.is_done]


def rows_of(result: Rows, num_items: int, ragged: Mapping[str, str], spans: Sequence[Spans] = ()) -> list[Rows]:
    """Split the result of a forward pass by item."""
    rows: list[Rows] = [{} for _ in range(num_items)]
    for name, values in result.items():
        pieces: Iterable[Array] = values
        if name in ragged:
            pieces = np.split(values, np.cumsum(result[ragged[name]])[:-1])
        elif spans:
            pieces = _by_spans(values, spans)
        for row, piece in zip(rows, pieces, strict=True):
            row[name] = piece
    return rows


def _by_spans(values: Array, spans: Sequence[Spans]) -> Iterator[Array]:
    """Yield the rows of each item with spans, and the only row of each other one."""
    start = 0
    for own in spans:
        yield values[start : start + len(own)] if own else values[start]
        start += len(own) or 1
