"""Counters of a service over time: none may fall while no process has been killed or stopped."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.soak.history import BACK_S, Happened
from tests.soak.sampling import sampled

INTERVAL_S = 2.0

# A counter and its labels.
Name = tuple[str, tuple[tuple[str, str], ...]]

SUFFIXES = ("_total", "_count", "_sum", "_bucket")


@dataclass
class Counters:
    """Samples of the counters at the addresses of metrics. Use `watching` as a context manager."""

    urls: Sequence[str]
    samples: list[tuple[float, Mapping[Name, float]]] = field(default_factory=list)

    def watching(self) -> AbstractContextManager[None]:
        return sampled(self.sample, INTERVAL_S)

    def sample(self) -> None:
        found: dict[Name, float] = {}
        for url in self.urls:
            with suppress(httpx.HTTPError):
                found |= counters_in(httpx.get(url, timeout=10).raise_for_status().text)
        self.samples.append((time.monotonic(), found))


def counters_in(text: str) -> dict[Name, float]:
    """Return the counters of Prometheus' text format, those of histograms included.

    >>> counters_in('# TYPE a_total counter\\na_total{b="c"} 3.0\\n# TYPE d gauge\\nd 5.0\\n')
    {('a_total', (('b', 'c'),)): 3.0}
    """
    samples = (
        each
        for family in text_string_to_metric_families(text)
        if family.type in ("counter", "histogram")
        for each in family.samples
    )
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for each in samples if each.name.endswith(SUFFIXES)
    }


def fallen(samples: Sequence[tuple[float, Mapping[Name, float]]], faults: Iterable[Happened]) -> list[str]:
    """Return the counters that fell between two samples without a fault.

    >>> samples = [(0.0, {("a_total", ()): 3.0}), (5.0, {("a_total", ()): 2.0})]
    >>> fallen(samples, [])
    ['a_total () fell from 3 to 2']
    >>> fallen(samples, [Happened("kill door", 1.0, 1.0)])
    []
    """
    faults, found = list(faults), []
    for (since, before), (until, after) in pairwise(samples):
        if any(each.began <= until and each.ended + BACK_S >= since for each in faults):
            continue
        for name, value in after.items():
            if value < before.get(name, 0.0):
                found.append(f"{name[0]} {name[1]} fell from {before[name]:g} to {value:g}")
    return found
