"""Speed of sources on a dataset's texts: throughput, latency and GPU utilisation, in rounds in which all take turns."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

import numpy as np
import pynvml

from sie_triton.cli.evaluation.dataset import Dataset
from sie_triton.cli.evaluation.metrics import SPEED, is_better_lower
from sie_triton.cli.evaluation.sources import Source
from sie_triton.system.host.repeated import repeated

Figures = dict[str, float]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of one source in one round. A source in this process gets all texts in one call."""

    rounds: int
    clients: int  # that call at once
    batch: int  # texts of a call
    texts: int  # for each side
    singles: int  # texts that are then sent one after another


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over the rounds by source, and medians of the rounds' ratios of the first source to each other one.

    A ratio above 1 means that the first source is faster.
    """

    medians: Mapping[str, Figures]
    ratios: Mapping[str, Figures]


class Side:
    """Calls of one source for queries, or for documents."""

    def __init__(self, source: Source, texts: Sequence[str], load: Workload, *, is_query: bool) -> None:
        encode = partial(source.encode, is_query=is_query)
        chosen = [*islice(cycle(texts), load.texts)]
        size = load.texts if source.is_in_process else load.batch
        self._calls = [partial(encode, chosen[start : start + size]) for start in range(0, load.texts, size)]
        self._singles = [partial(encode, [text]) for text in islice(cycle(texts), load.singles)]
        self._load = load

    def all(self) -> None:
        with ThreadPoolExecutor(self._load.clients) as pool:
            for done in [pool.submit(call) for call in self._calls]:
                done.result()

    def throughput(self, side: str) -> Figures:
        """Return items per second, and GPU utilisation if a GPU can be asked."""
        with utilisation() as samples:
            found = {f"{side}_items_per_s": self._load.texts / _seconds(self.all)}
        return {**found, f"{side}_gpu_percent": statistics.fmean(samples)} if samples else found

    def latencies(self, side: str) -> Figures:
        alone_ms = [1000 * _seconds(call) for call in self._singles]
        return {f"{side}_p{each}_ms": float(np.percentile(alone_ms, each)) for each in (50, 90, 99)}


def measure(sources: Mapping[str, Source], dataset: Dataset, load: Workload) -> Speed:
    """Measure all sources in each round, step by step; each round begins with another source."""
    works = {
        name: {
            "query": Side(source, [*dataset.queries.values()], load, is_query=True),
            "corpus": Side(source, [*dataset.corpus.values()], load, is_query=False),
        }
        for name, source in sources.items()
    }
    for sides in works.values():
        for side in sides.values():  # loads the model, and warms it up
            side.all()
    return summary([_round(works, order) for order in _turns([*works], load.rounds)])


def _round(works: Mapping[str, Mapping[str, Side]], order: Sequence[str]) -> dict[str, Figures]:
    found: dict[str, Figures] = {name: {} for name in works}
    for side in ("query", "corpus"):
        for step in (Side.throughput, Side.latencies):
            for name in order:
                found[name] |= step(works[name][side], side)
    return found


def summary(rounds: Sequence[Mapping[str, Figures]]) -> Speed:
    """Return the medians; the first source is that of the first round.

    >>> summary([{"a": {"query_p50_ms": 2.0}, "b": {"query_p50_ms": 6.0}}]).ratios
    {'b': {'query_p50_ms': 3.0}}
    """
    first, *others = rounds[0]
    ratios = {
        other: {
            metric: statistics.median(_ratio(metric, each[first][metric], each[other][metric]) for each in rounds)
            for metric in rounds[0][first]
            if metric in SPEED
        }
        for other in others
    }
    medians = {
        name: {metric: statistics.median(each[name][metric] for each in rounds) for metric in rounds[0][name]}
        for name in rounds[0]
    }
    return Speed(medians, ratios)


def _turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """
    >>> [*_turns(["a", "b"], 3)]
    [['a', 'b'], ['b', 'a'], ['a', 'b']]
    """
    for number in range(rounds):
        start = number % len(names)
        yield [*names[start:], *names[:start]]


def _ratio(metric: str, ours: float, theirs: float) -> float:
    return theirs / ours if is_better_lower(metric) else ours / theirs


def _seconds(call: Call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@contextmanager
def utilisation() -> Iterator[list[int]]:
    """Context manager; gives a list to which a thread adds the utilisation of each GPU, in percent, ten times a second.

    It stays empty if NVML or a GPU is missing.
    """
    samples: list[int] = []
    try:
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:  # no driver
        gpus = []

    def sample() -> None:
        with suppress(pynvml.NVMLError):  # a part of a GPU (MIG) does not tell
            samples.extend(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus)

    sample()
    with repeated(sample, 0.1, "sie-eval-gpu"):
        yield samples
