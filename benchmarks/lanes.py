"""Forward passes in process, on the same lanes as in inference; and helpers for fair comparisons."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import VERBS, Batch, Features, Part, Ragged, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS, lengths_of
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.models.families import load_adapter, load_processor, model_of
from sie_triton.models.inputs import NoFrame
from sie_triton.models.inputs.features import join, split
from sie_triton.pipeline.scheduling import plan
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.job import rows_of
from sie_triton.pipeline.scheduling.scheduler import MAX_CPU_LANES

LANE_TOKENS = 1024


class Lanes:
    """An adapter that runs on as many lanes as a scheduler has."""

    def __init__(self, spec: ModelSpec, directory: Path) -> None:
        engine = open_engine(spec, "cpu", Measurements())
        self._adapter = load_adapter(spec, directory, engine)
        self._processor = load_processor(spec, directory)
        model = model_of(spec)
        computed = [tensor for task in spec.tasks for tensor in VERBS[task].computed(model)]
        self._ragged, self._main = lengths_of(computed), model.features[0].name
        self._outputs = frozenset(output.made_of or name for name, output in model.outputs.items())
        cores = CpuBudget(0, list).total
        num_lanes = min(MAX_CPU_LANES, cores)
        self._pool = ThreadPoolExecutor(num_lanes, "lane", engine.use_threads, (max(1, cores // num_lanes),))

    def encode(self, texts: Sequence[Any], *, is_query: bool = False) -> list[Rows]:
        """Return the output tensors of each text, or of each pair."""
        return self._run(texts, is_query=is_query)

    def score(self, query: str, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the scores of texts for a query, float32 [texts]; only for families that score pairs."""
        part = Part("text", texts, query=query)
        frame = self._processor.frame(part)
        return np.stack([row["scores"] for row in self._run([frame.around(text) for text in texts], is_query=False)])

    def _run(self, framed: Sequence[Any], *, is_query: bool) -> list[Rows]:
        features = self._processor.encode(framed, is_query=is_query)
        features = self._processor.finish(features, NoFrame())
        items = split(features, [1] * len(framed))
        rows: dict[int, Rows] = {}

        def work(chosen: list[int]) -> None:
            packed = Batch(join([items[i] for i in chosen]), np.full(len(chosen), is_query), self._outputs)
            rows.update(zip(chosen, rows_of(self._adapter.forward(packed), len(chosen), self._ragged), strict=True))

        lengths = features[self._main].lengths
        assert lengths is not None
        list(self._pool.map(work, plan(lengths.tolist(), LANE_TOKENS)))
        return [rows[i] for i in range(len(framed))]

    def dense(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the dense vectors of texts, float32 [texts, dim]."""
        return np.stack([row["dense"] for row in self.encode(texts)])

    def close(self) -> None:
        self._pool.shutdown()


def token_batch(items: Sequence[np.ndarray[Any, np.dtype[np.int32]]]) -> Batch:
    """Return a batch that requests the dense vectors of items of token ids."""
    lengths = np.array([len(item) for item in items], np.int32)
    features: Features = {
        INPUT_IDS.name: Ragged(np.concatenate(items), lengths),
        PROMPT_TOKENS.name: Ragged(np.zeros(len(items), np.int32)),
    }
    return Batch(features, np.zeros(len(items), np.bool_), frozenset({"dense"}))


def interleaved(subjects: Mapping[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, list[float]]:
    """Measure the items per second of each subject, by round, after a warm-up round."""
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
