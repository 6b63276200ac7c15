"""The stages' own seam in memory: requests as arrays, and an adapter that echoes."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sie_triton.spec import ModelSpec, Runtime
from sie_triton.stages.request import DEFERRED
from sie_triton.worker.process import Loaded, WorkerDied

VOCABULARY = 100

# Requests come to a stage without the one before it.
OPEN = Runtime(open_steps=True)


class FakeRequest:
    """Our own seam, stages.request.Request, in memory."""

    def __init__(self, parameters: Mapping[str, Any] | None = None, timeout_us: int = 0, **tensors: Any) -> None:
        self.parameters = parameters or {}
        self.timeout_us = timeout_us
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
        """What the client gets, whichever way it came; exactly once."""
        if direct is not DEFERRED:
            assert not self.answers
            return direct
        assert self.answered.wait(20)
        (answer,) = self.answers
        return answer


class EchoWorker:
    """A worker in this process: each item's row is its first token and its length; token 13 fails the forward pass.

    A pass of more than `memory` tokens is out of memory, for the first `shortages` times. Each waits for `may_go`.
    """

    loaded = Loaded(VOCABULARY, 1, 0)
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
        num_tokens = int(batch.lengths.sum())
        self.batches.append(num_tokens)
        time.sleep(self.delay_s)
        assert self.may_go.wait(20)
        if num_tokens > self.memory and self.shortages:
            self.shortages -= 1
            raise MemoryError
        if 13 in batch.input_ids:
            raise RuntimeError("secret detail")
        if self.deaths:
            self.deaths -= 1
            raise WorkerDied
        starts = np.cumsum(batch.lengths) - batch.lengths
        return {"dense": np.stack([batch.input_ids[starts], batch.lengths], 1).astype(np.float32)}


def spec(**changes: Any) -> ModelSpec:
    defaults = {
        "model": "m",
        "weights": "nowhere",
        "family": "sentence_transformer",
        "output_types": ("dense",),
        "dense_dim": 2,
        "max_sequence_length": 64,
        "max_batch_cost": 100,
        "runtime": OPEN,
    }
    return ModelSpec(**{**defaults, **changes})


def tokens(*items: list[int], **changes: Any) -> FakeRequest:
    tensors = {
        "input_ids": np.array([[t for item in items for t in item]], np.int32),
        "lengths": np.array([[len(item) for item in items]], np.int32),
        "prompt_tokens": np.zeros((1, 1), np.int32),
        "stamps": np.array([[time.monotonic_ns()] * 2 + [0, 0]], np.int64),
    }
    return FakeRequest(**{**tensors, **changes})


def run(stage, requests):
    return [request.answer(answer) for request, answer in zip(requests, stage.execute(requests), strict=True)]
