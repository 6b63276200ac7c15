"""The stages' own seam in memory: requests as arrays, and an adapter that echoes."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sie_triton.contract import VERBS
from sie_triton.families.shared.token_batch import tokens as tokens_of
from sie_triton.host.file_locks import LockFile
from sie_triton.scheduling.job import deadline_ns
from sie_triton.scheduling.slots import Slots
from sie_triton.spec import ModelSpec, Runtime
from sie_triton.stages.context import Context
from sie_triton.stages.request import DEFERRED
from sie_triton.stages.seal import SEAL_BYTES
from sie_triton.worker.messages import Loaded
from sie_triton.worker.process import WorkerDied

VOCABULARY = 100
MAX_LENGTH = 64

# Requests come to a stage without the one before it.
OPEN = Runtime(open_steps=True)

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
        """Return the client's only response, direct or deferred."""
        if direct is not DEFERRED:
            assert not self.answers
            return direct
        assert self.answered.wait(120)
        (answer,) = self.answers
        return answer


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
        "runtime": OPEN,
    }
    return ModelSpec(**{**defaults, **changes})


def asked(verb: str, parameters: Mapping[str, Any] | None = None, timeout_us: int = 0, **inputs: Any) -> FakeRequest:
    """Request of preprocess as the ensemble of a verb sends it: texts as a list, or an array as it is."""
    arrays = {
        f"{verb}_{name}": np.array([[text.encode() for text in value]], object) if isinstance(value, list) else value
        for name, value in inputs.items()
    }
    return FakeRequest(parameters, timeout_us, **arrays)


def context(verb: str = "encode", num_items: int = 1, **fields: Any) -> Any:
    """The tensor as an open step takes it; `fields` of a Context, `options` too."""
    made = Context(VERBS[verb], **{"options": {}, "num_items": num_items, **fields})
    return np.frombuffer(bytes(SEAL_BYTES) + made.to_json(), np.uint8)[None]


def context_of(answer: Mapping[str, Any]) -> Context:
    """Context that a step passes on."""
    return Context.from_json(answer["context"][SEAL_BYTES:].tobytes())


def tokens(
    *items: list[int],
    query: list[int] | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout_us: int = 0,
    arrived_ns: int | None = None,
    **changes: Any,
) -> FakeRequest:
    """Request of inference; with a `query` it is a score request."""
    arrived = time.monotonic_ns() if arrived_ns is None else arrived_ns
    everything = [*items, *([] if query is None else [query])]
    made = context(
        "encode" if query is None else "score",
        len(items),
        options=dict(parameters or {}),
        arrived_ns=arrived,
        preprocessed_ns=arrived,
        deadline_ns=deadline_ns(arrived, timeout_us),
    )
    tensors = {
        "input_ids": np.array([[t for item in everything for t in item]], np.int32),
        "lengths": np.array([[len(item) for item in everything]], np.int32),
        "prompt_tokens": np.zeros((1, len(everything)), np.int32),
        "context": made,
    }
    return FakeRequest(timeout_us=timeout_us, **{**tensors, **changes})


def run(stage, requests):
    return [request.answer(answer) for request, answer in zip(requests, stage.execute(requests), strict=True)]
