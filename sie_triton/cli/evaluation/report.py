"""Reports of an evaluation: a table, a JSON document, a picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from sie_triton.cli.evaluation.metrics import GPU, METRICS, QUALITY
from sie_triton.cli.evaluation.targets import Miss
from sie_triton.errors import InputError

TITLES = {**METRICS, **GPU}


@dataclass(frozen=True, slots=True)
class Report:
    """Values by source and metric; `ratios` of the first source to each other one; `misses` of the first source."""

    model: str
    dataset: str
    type: str
    sources: Mapping[str, Mapping[str, float]]
    targets: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    misses: Sequence[Miss] = ()

    @property
    def metrics(self) -> list[str]:
        return [name for name in TITLES if any(name in values for values in self.sources.values())]

    @property
    def title(self) -> str:
        return f"{self.model}, {self.dataset}"

    def table(self) -> Table:
        first, *others = self.sources
        compared = [other for other in others if other in self.ratios]
        table = Table()
        for name in ("", *self.sources, *(["targets"] if self.targets else []), *(f"{first} ÷ {x}" for x in compared)):
            table.add_column(name, justify="right" if name else "left")
        for metric in self.metrics:
            columns = [*self.sources.values(), *([self.targets] if self.targets else [])]
            ratios = [f"{self.ratios[x][metric]:.2f} ×" if metric in self.ratios[x] else "" for x in compared]
            table.add_row(TITLES[metric], *(_shown(metric, each.get(metric)) for each in columns), *ratios)
        return table

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "misses": [miss._asdict() for miss in self.misses]})

    def draw(self, path: Path) -> None:
        """Write a picture with bars for each source and metric, and a panel for each unit; the suffix decides how."""
        from matplotlib.figure import Figure

        panels = [chosen for chosen in self._panels().items() if chosen[1]]
        figure = Figure(figsize=(6 * len(panels), 4), layout="constrained")
        figure.suptitle(self.title)
        columns = {**self.sources, **({"targets": self.targets} if self.targets else {})}
        for axes, (unit, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            width = 0.8 / len(columns)
            for number, (name, values) in enumerate(columns.items()):
                places = [place + width * number for place in range(len(metrics))]
                axes.bar(places, [values.get(metric, 0) for metric in metrics], width, label=name)
            middle = width * (len(columns) - 1) / 2
            axes.set_xticks([place + middle for place in range(len(metrics))], [*map(_short, metrics)], rotation=20)
            axes.set_ylabel(unit)
            axes.legend()
        try:
            figure.savefig(path)
        except (OSError, ValueError) as exc:
            raise InputError(f"--plot {path}: cannot be written ({exc})") from exc

    def _panels(self) -> dict[str, list[str]]:
        speeds = [name for name in self.metrics if name.endswith("_per_s")]
        latencies = [name for name in self.metrics if name.endswith("_ms")]
        shares = [name for name in self.metrics if name.endswith("_percent")]
        others = [name for name in self.metrics if name not in {*speeds, *latencies, *shares}]
        return {"": others, "texts a second": speeds, "milliseconds": latencies, "%": shares}


def _short(metric: str) -> str:
    return metric.removesuffix("_per_s").removesuffix("_ms").removesuffix("_percent").replace("_", " ")


def _shown(metric: str, value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if metric in QUALITY else f"{value:.1f}"
