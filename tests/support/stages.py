"""The stages' own seam in memory: requests as arrays, and an adapter that echoes."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from sie_triton.contract import ENCODE_OUTPUTS, VERBS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import (
    FOUND,
    FOUND_LENGTHS,
    LENGTHS,
    MESSAGE,
    NUM_PIECES,
    NUMPY_DTYPES,
    SCORES,
    Tensor,
    with_lengths,
)
from sie_triton.errors import InputError
from sie_triton.models.families import families
from sie_triton.models.families.shared.token_batch import tokens as tokens_of
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.job import deadline_ns
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.context import Context
from sie_triton.pipeline.stages.message import FRONT, SEAL_BYTES, Messages, Seal
from sie_triton.pipeline.stages.open_requests import OpenRequests
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.worker.handle import WorkerDied
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.system.host.file_locks import LockFile

VOCABULARY = 100
MAX_LENGTH = 64

# More than any test needs.
FREE_SLOTS = Slots(LockFile.private(), 9, 8)


class FakeRequest:
    """Our own seam, stages.request.Request, in memory."""

    def __init__(self, parameters: Mapping[str, Any] | None = None, timeout_us: int = 0, **tensors: Any) -> None:
        self.parameters = parameters or {}
        self.timeout_us = timeout_us
        self.id, self.arrived_ns = "", time.monotonic_ns()
        self.cancelled = False
        self._tensors = tensors
        self.is_deferred = False
        self.answers: list[Any] = []
        self.answered = threading.Event()

    def tensor(self, name):
        return self._tensors.get(name)

    def defer(self):
        self.is_deferred = True

    def is_cancelled(self):
        assert not self.answers, "Triton crashes"
        return self.cancelled

    def reply(self, answer):
        assert self.is_deferred
        self.answers.append(answer)
        self.answered.set()

    def answer(self, direct):
        """Return the only response, direct or deferred, and what is in it if it is a message."""
        return opened(self.response(direct))

    def response(self, direct):
        if direct is not DEFERRED:
            assert not self.answers
            return direct
        assert self.answered.wait(120)
        (answer,) = self.answers
        return answer


class Counts:
    """The counters of a status record, in memory: `added` has each change. `is_awaited`: another process waits."""

    def __init__(self) -> None:
        self.added: list[dict[str, int]] = []
        self.awaits = False

    def add(self, **numbers: int) -> None:
        self.added.append(numbers)

    def total(self, name: str) -> int:
        return sum(each.get(name, 0) for each in self.added)

    def is_awaited(self) -> bool:
        return self.awaits


def open_requests(
    counts: Counts | None = None,
    calls: Mapping[str, Any] = MappingProxyType({}),
    limits: StageLimits = StageLimits(),
) -> OpenRequests:
    """Open requests of a stage whose calls at the door have these tokens."""
    return OpenRequests(counts or Counts(), SimpleNamespace(find=calls.get), lambda request, error: None, limits)


class EchoWorker:
    """A worker in this process: each item's row is its first token and its length; token 13 fails the forward pass.

    A pass of more than `memory` tokens is out of memory, for the first `shortages` times. Each waits for `may_go`.
    """

    loaded = Loaded({"input_ids": VOCABULARY - 1}, MAX_LENGTH, 1, 0)
    is_alive = True

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.batches: list[int] = []
        self.memory, self.shortages = 10**6, 10**6
        self.deaths = 0
        self.closed = False
        self.may_go = threading.Event()
        self.may_go.set()

    def close(self):
        self.closed = True

    def forward(self, batch, threads):
        assert threads >= 1
        input_ids, lengths = tokens_of(batch)
        num_tokens = int(lengths.sum())
        self.batches.append(num_tokens)
        time.sleep(self.delay_s)
        assert self.may_go.wait(120)
        if num_tokens > self.memory and self.shortages:
            self.shortages -= 1
            raise MemoryError
        if 13 in input_ids:
            raise RuntimeError("secret detail")
        if self.deaths:
            self.deaths -= 1
            raise WorkerDied
        starts = np.cumsum(lengths) - lengths
        return {"dense": np.stack([input_ids[starts], lengths], 1).astype(np.float32)}


def spec(**changes: Any) -> ModelSpec:
    defaults = {
        "model": "m",
        "weights": "nowhere",
        "family": "sentence_transformer",
        "dims": {"dense": 2},
        "max_sequence_length": MAX_LENGTH,
        "max_batch_cost": 100,
    }
    return ModelSpec(**{**defaults, **changes})


def asked(verb: str, parameters: Mapping[str, Any] | None = None, timeout_us: int = 0, **inputs: Any) -> FakeRequest:
    """Request of preprocess as the ensemble of a verb sends it: texts as a list, or an array as it is."""
    arrays = {
        f"{verb}_{name}": np.array([[text.encode() for text in value]], object) if isinstance(value, list) else value
        for name, value in inputs.items()
    }
    return FakeRequest(parameters, timeout_us, **arrays)


def sent(
    sender: str, arrays: Mapping[str, Any], *, verb: str = "encode", large: Collection[str] = (), **fields: Any
) -> dict[str, Any]:
    """Tensors, in a batch of one, as the step `sender` sends them; `fields` of a Context, without options by default.

    The dtypes are those of the arrays.
    """
    context = Context(VERBS[verb], **{"options": {}, **fields})
    tensors = [
        Tensor(name, DTYPES[array.dtype], (-1,) * array.ndim, is_large=name in large) for name, array in arrays.items()
    ]
    outputs = Messages(Seal(Path()), sender, tensors).write(context, dict(arrays))
    return {name: array[None] for name, array in outputs.items()}


DTYPES = {np.dtype(dtype): name for name, dtype in NUMPY_DTYPES.items()}


def opened(answer: Any) -> Any:
    """What a stage answers the next one: its arrays, `context`, and `cost` [1]; anything else as it is."""
    if not isinstance(answer, Mapping) or MESSAGE.name not in answer:
        return answer
    request = FakeRequest(**{name: array[None] for name, array in answer.items()})
    for sender in ("preprocess", "inference"):
        with suppress(InputError):
            context, rows = Messages(Seal(Path()), sender, every_tensor()).read(request, copy=True)
    cost, _, _ = FRONT.unpack_from(answer[MESSAGE.name], SEAL_BYTES)
    return {**rows, "context": context, "cost": np.array([cost])}


@cache
def every_tensor() -> Sequence[Tensor]:
    """The tensors that any family sends from step to step."""
    sent = [tensor for _, each in families() for tensor in with_lengths(each.features)]
    computed = [tensor for _, each in families() for output in each.outputs for tensor in output.tensors]
    return (*sent, *computed, *(tensor for output in ENCODE_OUTPUTS.values() for tensor in output.tensors), *OTHERS)


OTHERS = (LENGTHS, SCORES, FOUND, FOUND_LENGTHS, NUM_PIECES)


def tokens(
    *items: list[int],
    query: list[int] | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout_us: int = 0,
    arrived_ns: int | None = None,
    fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> FakeRequest:
    """Request of inference, with other `fields` of the context; with a `query` it is a score request."""
    arrived = time.monotonic_ns() if arrived_ns is None else arrived_ns
    everything = [*items, *([] if query is None else [query])]
    arrays = {
        "input_ids": np.array([t for item in everything for t in item], np.int32),
        "lengths": np.array([len(item) for item in everything], np.int32),
        "prompt_tokens": np.zeros(len(everything), np.int32),
    }
    of_context = {
        "verb": "encode" if query is None else "score",
        "num_items": len(items),
        "options": dict(parameters or {}),
        "arrived_ns": arrived,
        "preprocessed_ns": arrived,
        "deadline_ns": deadline_ns(arrived, timeout_us),
        **(fields or {}),
    }
    return FakeRequest(timeout_us=timeout_us, **sent("preprocess", {**arrays, **changes}, **of_context))


def computed(arrays: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, **fields: Any) -> FakeRequest:
    """Request of postprocess: `arrays` with the items' lengths, `inputs` of the client, `fields` of the context."""
    return FakeRequest(**sent("inference", arrays, **{"num_items": len(arrays["lengths"]), **fields}), **(inputs or {}))


def run(stage, requests):
    return [request.answer(answer) for request, answer in zip(requests, stage.execute(requests), strict=True)]
