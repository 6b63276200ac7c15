"""One request inside inference: its packed items, and what has come back for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import (
    ENCODE_OUTPUTS,
    INPUT_IDS,
    LENGTHS,
    PROMPT_TOKENS,
    QUERY_IDS,
    RAGGED,
    SCORES,
    TOKEN_TYPE_IDS,
    Parameter,
    Tensor,
    check_parameters,
)
from sie_triton.errors import InputError, SIEError
from sie_triton.families import features
from sie_triton.families.base import PackedBatch, Rows
from sie_triton.parameters import forward_types, score_mode, score_types, wanted_types
from sie_triton.spec import ModelSpec
from sie_triton.stages.open_requests import NEVER, deadline_ns
from sie_triton.stages.request import Request, vector
from sie_triton.stages.seal import Seal
from sie_triton.stages.timing import PREPROCESS_STAMPS, Stamps, read_stamps
from sie_triton.transforms import similarity

Ints = npt.NDArray[np.int32]
TaskParameters = Mapping[str, Mapping[str, Parameter]]  # by task, then by name

NO_IDS: Ints = np.zeros(0, np.int32)
NO_PROMPT: Ints = np.zeros(1, np.int32)


@dataclass(slots=True, eq=False)
class Job:
    """input_ids int32 [tokens], lengths int32 [items], stamps int64 [4]; deadline and `ran` in monotonic ns.

    With a `score_mode` the last item is the query that the others are scored against. type_ids, int32 [tokens], tell
    the texts of a pair apart where the model wants it. What the client sent as `cost` is never trusted.
    """

    request: Request
    input_ids: Ints
    lengths: Ints
    prompt_tokens: Ints
    stamps: Stamps
    deadline_ns: int = NEVER
    wanted: frozenset[str] = frozenset()
    is_query: bool = False
    type_ids: Ints | None = None
    task: str = "encode"
    score_mode: str = ""
    costs: list[int] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    scores: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
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
    def read(cls, request: Request, spec: ModelSpec, parameters: TaskParameters, vocab_size: int, seal: Seal) -> "Job":
        """Validate what inference was sent, also where clients may skip preprocess."""
        sent = {f.name: vector(request, f.name, np.int32) for f in features(spec)}
        stamps = read_stamps(request, PREPROCESS_STAMPS, "arrived, preprocessed, ticket, seal")
        seal.check(stamps, sent.values())
        check_features(sent, spec, vocab_size)
        query_ids = sent.get(QUERY_IDS.name, NO_IDS)
        task = "score" if spec.scores_pairs or len(query_ids) else "encode"
        options = check_parameters(request.parameters, parameters[task])
        job = cls(
            request,
            input_ids=np.concatenate([sent[INPUT_IDS.name], query_ids]),
            lengths=np.append(sent[LENGTHS.name], np.full(int(len(query_ids) > 0), len(query_ids), np.int32)),
            prompt_tokens=sent.get(PROMPT_TOKENS.name, NO_PROMPT),
            type_ids=sent.get(TOKEN_TYPE_IDS.name),
            stamps=stamps,
            deadline_ns=deadline_ns(int(stamps[0]), request.timeout_us),
            task=task,
            is_query=bool(options.get("is_query", False)),
        )
        job.score_mode = score_mode(spec, options) if task == "score" else ""
        job.wanted = score_types(job.score_mode) if task == "score" else forward_types(wanted_types(spec, options))
        return job

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
    def text_lengths(self) -> Ints:
        """Those of what the client sent as items, without the query."""
        return self.lengths[:-1] if self.score_mode else self.lengths

    @property
    def num_items(self) -> int:
        return len(self.lengths)

    def tokens(self, item: int) -> Ints:
        return self.input_ids[self._offsets[item] : self._offsets[item + 1]]

    def prompt_tokens_of(self, item: int) -> int:
        """The query, where there is one among the items, has its own."""
        return int(self.prompt_tokens[-1 if self._is_scored_query(item) else 0])

    def types(self, item: int) -> Ints:
        assert self.type_ids is not None
        return self.type_ids[self._offsets[item] : self._offsets[item + 1]]

    def is_query_at(self, item: int) -> bool:
        return self.is_query or self._is_scored_query(item)

    def _is_scored_query(self, item: int) -> bool:
        return self.score_mode != "" and item == self.num_items - 1

    def put(self, item: int, row: Rows) -> None:
        """Keep what belongs to one item."""
        self.rows[item] = row
        self._missing -= 1

    def score(self) -> None:
        """Make the scores of what has come back, where the forward pass did not."""
        if self.score_mode and self.error is None:
            *texts, query = self.rows
            self.scores = similarity(self.score_mode, query, texts)

    def outputs(self, types: Iterable[str]) -> Rows:
        """The tensors of all these output types of encode, those that were not wanted empty; or the scores."""
        if self.task == "score":
            made = self.score_mode != ""
            return {SCORES.name: self.scores if made else np.array([row[SCORES.name] for row in self.rows], np.float32)}
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
        prompt_tokens=np.array([job.prompt_tokens_of(item) for job, item in slots], np.int32),
        is_query=np.array([job.is_query_at(item) for job, item in slots]),
        outputs=frozenset().union(*(job.wanted for job, _ in slots)),
        type_ids=None if slots[0][0].type_ids is None else np.concatenate([job.types(item) for job, item in slots]),
    )


def rows_of(result: Rows, num_items: int) -> list[Rows]:
    """What a forward pass gave, item by item."""
    rows: list[Rows] = [{} for _ in range(num_items)]
    for name, values in result.items():
        pieces = np.split(values, np.cumsum(result[RAGGED[name]])[:-1]) if name in RAGGED else values
        for row, piece in zip(rows, pieces, strict=True):
            row[name] = piece
    return rows


def settle(slots: SubBatch, result: Rows | SIEError, ran: tuple[int, int]) -> list[Job]:
    """Hand each row back to its job, or the error to all of them; the jobs that are done by this."""
    jobs = {id(job): job for job, _ in slots if not job.is_done}
    if isinstance(result, SIEError):
        for job, _ in slots:
            job.error = job.error or result
    else:
        for (job, item), row in zip(slots, rows_of(result, len(slots)), strict=True):
            job.put(item, row)
    for job in jobs.values():
        job.ran.append(ran)
    return [job for job in jobs.values() if job.is_done]


def check_features(sent: Mapping[str, Ints], spec: ModelSpec, vocab_size: int) -> None:
    """InputError names the first that is wrong."""
    input_ids = sent[INPUT_IDS.name]
    check_lengths(sent[LENGTHS.name], len(input_ids), spec.max_sequence_length)
    for name in (INPUT_IDS.name, QUERY_IDS.name):
        ids = sent.get(name, NO_IDS)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
            raise InputError(f"{name}: must be from 0 to {vocab_size - 1}, the model's vocabulary")
    if len(sent.get(QUERY_IDS.name, NO_IDS)) > spec.max_sequence_length:
        raise InputError(f"query_ids: must be at most {spec.max_sequence_length}, the model's max_sequence_length")
    type_ids = sent.get(TOKEN_TYPE_IDS.name, np.zeros_like(input_ids))
    if type_ids.shape != input_ids.shape or int(type_ids.min()) < 0 or int(type_ids.max()) > 1:
        raise InputError("token_type_ids: must be 0 or 1, one for each of input_ids")
    prompt_tokens = sent.get(PROMPT_TOKENS.name, NO_PROMPT)
    if prompt_tokens.shape not in ((1,), (2,)) or (prompt_tokens < 0).any():
        raise InputError("prompt_tokens: must be one integer or two, 0 or more")


def check_lengths(lengths: Ints, num_tokens: int, max_length: int) -> None:
    if len(lengths) == 0:
        raise InputError("lengths: is empty; send one length per item")
    if int(lengths.min()) < 1 or int(lengths.max()) > max_length:
        raise InputError(f"lengths: must be from 1 to {max_length}, the model's max_sequence_length")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_tokens:
        raise InputError(f"lengths: sum to {total}, but input_ids holds {num_tokens} tokens; they must agree")
