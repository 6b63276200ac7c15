"""`sie-triton eval`: evaluate sources on a dataset, and compare the first one with targets."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_triton.cli.evaluation.dataset import LAYOUT, Dataset, read_dataset
from sie_triton.cli.evaluation.report import Report
from sie_triton.cli.evaluation.targets import misses, read_targets
from sie_triton.client.address import Address
from sie_triton.errors import InputError, ServerError
from sie_triton.system.printing import Console

if TYPE_CHECKING:
    from sie_triton.cli.evaluation.sources import Source
    from sie_triton.cli.evaluation.speed import Workload

OF_MTEB = "mteb/"
TARGETS = "targets"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Request for an evaluation. `load` is None for quality. `tolerance` is a share of each target."""

    model: str
    task: str
    sources: Sequence[str]
    by: str
    server: Address
    models_dir: Path | None
    targets: Path | None
    tolerance: float
    load: "Workload | None"
    is_drawn: bool = False

    @property
    def is_of_mteb(self) -> bool:
        """True if the task is one of mteb's own, which are fetched from the hub."""
        return self.task.startswith(OF_MTEB) and not Path(self.task).is_dir()


def evaluate(asked: Evaluation) -> Report:
    """Evaluate all sources, one after another or, for speed, in turns.

    InputError or ServerError says what is invalid or not installed, before anything is sent to a server.
    """
    _check(asked)
    from sie_triton.cli.evaluation.sources import located, open_source

    place = (asked.model, asked.server, asked.models_dir)
    asked = replace(asked, sources=[located(spec, *place) for spec in asked.sources])
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    path = asked.targets or Path(asked.task) / "eval.yaml"
    targets = read_targets(path, asked.model) if TARGETS in asked.sources else {}
    with ExitStack() as stack, Console(stderr=True).status(f"reading {asked.task}") as status:
        task, dataset = _read(asked)
        opened = [open_source(spec, asked.model, asked.by, asked.server) for spec in asked.sources if spec != TARGETS]
        sources = {name: stack.enter_context(source) for name, source in opened}
        status.update(f"measuring {', '.join(sources)}")
        report = _measured(asked, sources, task, dataset)
    shown = {metric: value for metric, value in targets.items() if metric in report.metrics}
    if targets and not shown:
        raise InputError(f"targets: --type {report.type} measures none of {', '.join(targets)}")
    first = next(iter(report.sources.values()))
    return replace(report, targets=shown, misses=[*misses(first, targets, asked.tolerance)])


def _check(asked: Evaluation) -> None:
    names = [spec.partition("=")[0] for spec in asked.sources]
    if set(names) <= {TARGETS} or len({*names}) < len(names):
        raise InputError(f"-s {','.join(asked.sources)}: name one source or several, each once, beside targets")
    if asked.by == "score" and asked.load:
        raise InputError("--by score: --type perf measures encode; give dense, sparse or multivector")
    needed = ["matplotlib"] * asked.is_drawn + ["sentence_transformers"] * ("st" in names)
    needed += ["httpx"] * any("http" in spec for spec in asked.sources)
    needed += ["mteb"] * (asked.load is None or asked.is_of_mteb)
    if missing := [module for module in needed if find_spec(module) is None]:
        named = ", ".join(missing).replace("_", "-")
        raise ServerError(f"eval needs {named}: pip install 'sie-triton[eval]'")


def _read(asked: Evaluation) -> tuple[Any, Dataset]:
    """Return mteb's task, None if only speed is measured, and the dataset."""
    directory = Path(asked.task)
    if not asked.is_of_mteb:
        if not directory.is_dir():
            raise InputError(f"-t {asked.task}: is no directory and no task mteb/NAME; {LAYOUT}")
        dataset = read_dataset(directory)
        if asked.load:
            return None, dataset
    from sie_triton.cli.evaluation import quality

    if not asked.is_of_mteb:
        return quality.local_task(dataset), dataset
    task = quality.named_task(asked.task.removeprefix(OF_MTEB))
    return task, quality.dataset_of(task)


def _measured(asked: Evaluation, sources: dict[str, "Source"], task: Any, dataset: Dataset) -> Report:
    if asked.load is None:
        from sie_triton.cli.evaluation import quality

        found = {name: quality.evaluate(task, source, asked.by) for name, source in sources.items()}
        return Report(asked.model, dataset.name, "quality", found)
    from sie_triton.cli.evaluation import speed

    measured = speed.measure(sources, dataset, asked.load)
    return Report(asked.model, dataset.name, "perf", measured.medians, ratios=measured.ratios)
