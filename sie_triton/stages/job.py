"""One request inside inference: its packed items, and what has come back for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.adapters.base import PackedBatch, Rows
from sie_triton.contract import (
    ENCODE_OUTPUTS,
    INPUT_IDS,
    LENGTHS,
    PROMPT_TOKENS,
    RAGGED,
    STAMPS,
    Parameter,
    Tensor,
    check_parameters,
)
from sie_triton.errors import InputError, SIEError
from sie_triton.parameters import forward_types, wanted_types
from sie_triton.spec import ModelSpec
from sie_triton.stages.open_requests import NEVER, deadline_ns
from sie_triton.stages.request import Request, vector
from sie_triton.stages.timing import PREPROCESS_STAMPS, Stamps

Ints = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Job:
    """input_ids int32 [tokens], lengths int32 [items], stamps int64 [3]; deadline and `ran` in monotonic ns.

    What the client sent as `cost` is never trusted.
    """

    request: Request
    input_ids: Ints
    lengths: Ints
    prompt_tokens: int
    stamps: Stamps
    deadline_ns: int = NEVER
    wanted: frozenset[str] = frozenset()
    is_query: bool = False
    costs: list[int] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    error: SIEError | None = None
    ran: list[tuple[int, int]] = field(default_factory=list)
    is_deferred: bool = False
    is_bulk: bool = False
    _missing: int = field(init=False)
    _offsets: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._missing = self.num_items
        self.rows = [{}] * self.num_items
        self._offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @classmethod
    def read(cls, request: Request, spec: ModelSpec, parameters: Mapping[str, Parameter], vocab_size: int) -> "Job":
        """Validate what inference was sent, also by a client that skipped preprocess."""
        input_ids = vector(request, INPUT_IDS.name, np.int32)
        lengths = vector(request, LENGTHS.name, np.int32)
        prompt_tokens = vector(request, PROMPT_TOKENS.name, np.int32)
        stamps = vector(request, STAMPS.name, np.int64)
        options = check_parameters(request.parameters, parameters)
        check_lengths(lengths, len(input_ids), spec.max_sequence_length)
        if int(input_ids.min()) < 0 or int(input_ids.max()) >= vocab_size:
            raise InputError(f"input_ids: must be from 0 to {vocab_size - 1}, the model's vocabulary")
        if prompt_tokens.shape != (1,) or prompt_tokens[0] < 0:
            raise InputError("prompt_tokens: must be one integer, 0 or more")
        if stamps.shape != (PREPROCESS_STAMPS,):
            raise InputError(f"stamps: must be {PREPROCESS_STAMPS} integers (arrived, preprocessed, ticket)")
        deadline = deadline_ns(int(stamps[0]), request.timeout_us)
        wanted, is_query = forward_types(wanted_types(spec, options)), bool(options.get("is_query", False))
        return cls(request, input_ids, lengths, int(prompt_tokens[0]), stamps, deadline, wanted, is_query)

    @property
    def is_done(self) -> bool:
        return self.error is not None or not self._missing

    def is_over(self, now_ns: int) -> bool:
        """True if computing more of it is of no use."""
        return self.error is not None or self.deadline_ns <= now_ns

    @property
    def ticket(self) -> int:
        return int(self.stamps[2])

    @property
    def num_items(self) -> int:
        return len(self.lengths)

    def tokens(self, item: int) -> Ints:
        return self.input_ids[self._offsets[item] : self._offsets[item + 1]]

    def put(self, item: int, row: Rows) -> None:
        """Keep what belongs to one item."""
        self.rows[item] = row
        self._missing -= 1

    def outputs(self, types: Iterable[str]) -> Rows:
        """The tensors of all these output types; those that were not wanted are empty."""
        return {
            tensor.name: self._tensor(tensor) if each in self.wanted else tensor.empty()
            for each in types
            for tensor in ENCODE_OUTPUTS[each]
        }

    def _tensor(self, tensor: Tensor) -> npt.NDArray[Any]:
        if tensor.name in RAGGED:
            return np.concatenate([row[tensor.name] for row in self.rows])
        return np.array([row[tensor.name] for row in self.rows])


Slot = tuple[Job, int]  # one item of one job
SubBatch = Sequence[Slot]  # in the order they are packed


def pack(slots: SubBatch) -> PackedBatch:
    """The items of a sub-batch end to end."""
    return PackedBatch(
        input_ids=np.concatenate([job.tokens(item) for job, item in slots]),
        lengths=np.array([job.lengths[item] for job, item in slots], np.int32),
        prompt_tokens=np.array([job.prompt_tokens for job, _ in slots], np.int32),
        is_query=np.array([job.is_query for job, _ in slots]),
        outputs=frozenset().union(*(job.wanted for job, _ in slots)),
    )


def rows_of(result: Rows, num_items: int) -> list[Rows]:
    """What a forward pass gave, item by item."""
    rows: list[Rows] = [{} for _ in range(num_items)]
    for name, values in result.items():
        pieces = np.split(values, np.cumsum(result[RAGGED[name]])[:-1]) if name in RAGGED else values
        for row, piece in zip(rows, pieces, strict=True):
            row[name] = piece
    return rows


def check_lengths(lengths: Ints, num_tokens: int, max_length: int) -> None:
    if len(lengths) == 0:
        raise InputError("lengths: is empty; send one length per item")
    if int(lengths.min()) < 1 or int(lengths.max()) > max_length:
        raise InputError(f"lengths: must be from 1 to {max_length}, the model's max_sequence_length")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_tokens:
        raise InputError(f"lengths: sum to {total}, but input_ids holds {num_tokens} tokens; they must agree")
