"""Totals of the requests of each model, of all its processes: those that run, and those that have ended."""

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sie_triton.controller.limits import ControllerLimits
from sie_triton.records.revisions import model_of
from sie_triton.records.status import map_record
from sie_triton.records.traffic import ITEMS, LATENCY, Numbers, Traffic, quantile


@dataclass
class ModelTraffic:
    """`ended`: totals of processes that have ended, by stage; `running`: stage and record of the others, by file."""

    ended: defaultdict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    running: dict[str, tuple[str, np.void]] = field(default_factory=dict)
    moments: deque[tuple[float, Numbers]] = field(default_factory=deque)

    def total(self, stage: str = "") -> Traffic:
        """Return the totals of a stage, by default of all."""
        total = Traffic()
        for record in self._records(stage):
            total.add(record)
        return total

    def latencies(self) -> Numbers:
        """Return the counts of latencies of all verbs together."""
        records = (Traffic().total, *self._records())
        found: Numbers = np.sum([record[LATENCY.name] for record in records], axis=(0, 1))
        return found

    def _records(self, stage: str = "") -> Iterator[np.void]:
        ended = [(of, traffic.total) for of, traffic in list(self.ended.items())]
        return (record for of, record in (*ended, *list(self.running.values())) if stage in ("", of))


class TrafficBook:
    """The traffic of all models. The thread of the controller's round calls `look`, and any thread `totals`.

    A record stays readable after its file is gone, so that nothing of a process that has ended is lost.
    """

    def __init__(self, directory: Path, limits: ControllerLimits = ControllerLimits()) -> None:
        self._directory, self._limits = directory, limits
        self._models: Mapping[str, ModelTraffic] = {}
        self._looked_at = -limits.list_traffic_s

    def look(self, models: Iterable[str], now: float) -> None:
        """Find new records of `models`, and those of ended processes, at most once a second of `now`."""
        if now - self._looked_at < self._limits.list_traffic_s:
            return
        self._looked_at = now
        files: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for name in os.listdir(self._directory):
            if name.endswith(".status"):
                steps, _, stage = name.rsplit(".", 2)[0].rpartition("-")
                files[model_of(steps)][f"{self._directory}/{name}"] = stage
        book = {model: self._models.get(model) or ModelTraffic() for model in models}
        for model, traffic in book.items():
            _follow(traffic, files[model])
            self._remember(traffic, now)
        self._models = book

    def _remember(self, traffic: ModelTraffic, now: float) -> None:
        window_s, num_moments = self._limits.traffic_window_s, self._limits.num_moments
        if not traffic.moments or now - traffic.moments[-1][0] >= window_s / num_moments:
            traffic.moments.append((now, traffic.latencies()))
            if len(traffic.moments) > num_moments:
                traffic.moments.popleft()

    def totals(self, stage: str = "") -> Mapping[str, Traffic]:
        """Return the totals of each model, of one stage or of all."""
        return {model: traffic.total(stage) for model, traffic in self._models.items()}

    def summary(self, model: str) -> dict[str, int | float | None]:
        """Return the totals of a model, and its latencies of the last minute in milliseconds."""
        traffic = self._models.get(model) or ModelTraffic()
        total = traffic.total()
        recent = traffic.latencies() - (traffic.moments[0][1] if traffic.moments else 0)
        return {
            "requests": total.num_requests,
            "errors": sum(total.errors.values()),
            "items": int(total.sums(ITEMS).sum()),
            "loads": int(traffic.total("inference").total["num_loads"]),
            "p50_ms": _quantile_ms(recent, 0.5),
            "p99_ms": _quantile_ms(recent, 0.99),
        }


def _follow(traffic: ModelTraffic, files: Mapping[str, str]) -> None:
    for path in files.keys() - traffic.running.keys():
        with suppress(OSError, ValueError):
            traffic.running[path] = files[path], map_record(Path(path))
    for path in traffic.running.keys() - files.keys():
        stage, record = traffic.running.pop(path)
        traffic.ended[stage].add(record)


def _quantile_ms(latencies: Numbers, share: float) -> float | None:
    seconds = quantile(latencies.tolist(), LATENCY.bounds, share)
    return None if seconds is None else round(seconds * 1000, 3)
