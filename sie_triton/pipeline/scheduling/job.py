"""Jobs: requests that wait for the device, with their items and the rows computed so far."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.parameters import ParameterValue
from sie_triton.errors import OutOfMemory, SIEError

NEVER = 2**63 - 1


def deadline_ns(arrived_ns: int, timeout_us: int) -> int:
    """Return the deadline in monotonic nanoseconds; NEVER if the client set no timeout, or one of centuries."""
    return min(NEVER, arrived_ns + timeout_us * 1000) if timeout_us else NEVER


@dataclass(slots=True, eq=False)
class Job:
    """A request that waits for the device.

    `costs`: one per item, in the model's unit. `deadline_ns`, and `ran`, (start, end) of each forward pass, are
    monotonic nanoseconds. Items with different `group` never share a forward pass. `wanted`: the output types that the
    forward pass must compute; `options`: the parameters that the family reads there. `lora`: the worker's name of the
    LoRA adapter of the items; empty: none. The owner of the job writes the fields: first the stage, then one lane at a
    time, under the stage's lock.
    """

    features: Features
    is_query: Sequence[bool]
    costs: Sequence[int]
    wanted: frozenset[str] = frozenset()
    deadline_ns: int = NEVER
    group: Hashable = None
    options: Mapping[str, ParameterValue] | None = None
    lora: str = ""
    is_bulk: bool = False
    rows: list[Rows] = field(default_factory=list)
    error: SIEError | None = None
    ran: list[tuple[int, int]] = field(default_factory=list)
    num_items: int = field(init=False)
    _missing: int = field(init=False)
    _bounds: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_items = self._missing = len(self.costs)
        self.rows = [{}] * self.num_items

    @property
    def is_done(self) -> bool:
        return self.error is not None or not self._missing

    def is_late(self, now_ns: int) -> bool:
        """True if the job has failed or its deadline has passed, so that no more of it should be computed."""
        return self.error is not None or self.deadline_ns <= now_ns

    def rows_of(self, feature: Ragged, item: int) -> npt.NDArray[np.generic]:
        """Return the rows of an item in one of `features`."""
        values, lengths = feature
        if lengths is None:
            return values[item : item + 1]
        bounds = self._bounds.get(id(lengths))
        if bounds is None:
            bounds = self._bounds[id(lengths)] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return values[bounds[item] : bounds[item + 1]]

    def put(self, item: int, row: Rows) -> None:
        """Store the result of one item."""
        self.rows[item] = row
        self._missing -= 1


J = TypeVar("J", bound=Job)
JobItem = tuple[J, int]  # one item of one job
SubBatch = Sequence[tuple[J, int]]  # in packing order


def cost(job_item: JobItem[J]) -> int:
    job, item = job_item
    return job.costs[item]


def items_of(jobs: Iterable[J]) -> list[JobItem[J]]:
    """Return all items of `jobs`, in their order."""
    return [(job, item) for job in jobs for item in range(job.num_items)]


def side_by_side(items: SubBatch[J]) -> SubBatch[J]:
    """Sort items so that the items of each LoRA adapter are adjacent."""
    return sorted(items, key=lambda each: each[0].lora) if {job.lora for job, _ in items} - {""} else items


def pack(items: SubBatch[J]) -> Batch:
    """Pack the items of a sub-batch into a batch."""
    first, loras = items[0][0], [job.lora for job, _ in items]
    return Batch(
        features=first.features if _is_whole(first, items) else _end_to_end(items),
        is_query=np.array([job.is_query[item] for job, item in items]),
        outputs=frozenset().union(*[job.wanted for job, _ in items]),
        options=[] if first.options is None else [job.options or {} for job, _ in items],
        loras=loras if any(loras) else [],
        group=first.group,
        deadline_ns=max([job.deadline_ns for job, _ in items]),
    )


def _is_whole(job: Job, items: SubBatch[J]) -> bool:
    """True if `items` are exactly the items of `job`, in their order."""
    places = [item for own, item in items if own is job]
    return len(places) == len(items) and places == [*range(job.num_items)]


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
    items: SubBatch[J], result: Rows | SIEError, halvings: int, at_fault: tuple[type[SIEError], ...]
) -> list[SubBatch[J]]:
    """Return parts of a failed sub-batch to retry separately; empty if retrying cannot help.

    After OutOfMemory the parts are halves, at most `halvings` times. After an error of `at_fault`, which one of the
    jobs may have caused, each job is a part, so that it does not fail the others.
    """
    if isinstance(result, OutOfMemory) and len(items) > 1 and halvings > 0:
        middle = len(items) // 2
        return [items[:middle], items[middle:]]
    jobs = {id(job): job for job, _ in items}.values()
    if isinstance(result, at_fault) and len(jobs) > 1:
        return [[each for each in items if each[0] is job] for job in jobs]
    return []


def settle(items: SubBatch[J], result: Rows | SIEError, ran: tuple[int, int], ragged: Mapping[str, str]) -> list[J]:
    """Store each row in its job, or the error in all jobs. Return the jobs that are done with this.

    `ragged`: name of each ragged tensor → name of its lengths.
    """
    jobs = {id(job): job for job, _ in items if not job.is_done}
    if isinstance(result, SIEError):
        for job, _ in items:
            job.error = job.error or result
    else:
        for (job, item), row in zip(items, rows_of(result, len(items), ragged), strict=True):
            job.put(item, row)
    for job in jobs.values():
        job.ran.append(ran)
    return [job for job in jobs.values() if job.is_done]


def rows_of(result: Rows, num_items: int, ragged: Mapping[str, str]) -> list[Rows]:
    """Split the result of a forward pass by item."""
    rows: list[Rows] = [{} for _ in range(num_items)]
    for name, values in result.items():
        pieces = np.split(values, np.cumsum(result[ragged[name]])[:-1]) if name in ragged else values
        for row, piece in zip(rows, pieces, strict=True):
            row[name] = piece
    return rows
