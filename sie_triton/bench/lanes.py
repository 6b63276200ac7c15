"""Forward passes in process, on the lanes that inference runs them on; and how to compare two ways fairly."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.families import load_adapter, load_tokenizer
from sie_triton.families.base import Adapter, PackedBatch, Rows, Text, Tokens
from sie_triton.measurements import Measurements
from sie_triton.scheduling import plan
from sie_triton.scheduling.cpu_budget import CpuBudget
from sie_triton.scheduling.scheduler import MAX_CPU_LANES
from sie_triton.spec import ModelSpec
from sie_triton.stages.job import rows_of
from sie_triton.worker.threads import use_threads

LANE_TOKENS = 1024


class Lanes:
    """An adapter on as many lanes as a scheduler has."""

    def __init__(self, spec: ModelSpec, directory: Path, lane_tokens: int = LANE_TOKENS) -> None:
        self.adapter: Adapter = load_adapter(spec, directory, "cpu", Measurements())
        self._tokenizer = load_tokenizer(spec, directory)
        self._outputs = frozenset(spec.forward_types)
        self._lane_tokens = lane_tokens
        cores = CpuBudget(0, list).total
        num_lanes = min(MAX_CPU_LANES, cores)
        self._pool = ThreadPoolExecutor(num_lanes, "lane", use_threads, ("cpu", max(1, cores // num_lanes)))

    def encode(self, texts: Sequence[Text], *, is_query: bool = False) -> list[Rows]:
        """The tensors of each text, or of each pair."""
        tokens = self._tokenizer.encode(texts, is_query=is_query)
        items = list(tokens.split([1] * len(texts)))
        rows: dict[int, Rows] = {}

        def work(batch: list[int]) -> None:
            result = self.adapter.forward(packed([items[i] for i in batch], self._outputs, is_query=is_query))
            rows.update(zip(batch, rows_of(result, len(batch)), strict=True))

        list(self._pool.map(work, plan(tokens.lengths.tolist(), self._lane_tokens)))
        return [rows[i] for i in range(len(texts))]

    def score(self, query: str, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """float32 [texts], where the family scores pairs."""
        pairs = self._tokenizer.pairs(self._tokenizer.question(query, None), texts)
        return np.stack([row["scores"] for row in self.encode(pairs)])

    def dense(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """float32 [texts, dim]."""
        return np.stack([row["dense"] for row in self.encode(texts)])

    def forward(self, batches: list[PackedBatch]) -> None:
        list(self._pool.map(self.adapter.forward, batches))

    def close(self) -> None:
        self._pool.shutdown()


def packed(items: list[Tokens], outputs: frozenset[str], *, is_query: bool = False) -> PackedBatch:
    tokens = Tokens.join(items)
    prompt_tokens, roles = np.zeros(len(items), np.int32), np.full(len(items), is_query)
    types = tokens.type_ids if len(tokens.type_ids) else None
    return PackedBatch(tokens.input_ids, tokens.lengths, prompt_tokens, roles, outputs, types)


def interleaved(subjects: Mapping[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, list[float]]:
    """Items per second of each subject, by round; a first round warms up and is dropped."""
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds + 1):
        for name, work in subjects.items():
            rates[name].append(count / timed(work))
    return {name: measured[1:] for name, measured in rates.items()}


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
