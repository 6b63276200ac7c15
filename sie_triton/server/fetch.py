"""Weights of preloaded models, fetched before Triton starts: it would show no progress, and its start has a timeout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.catalog import ModelConfig
from sie_triton.models.families import family
from sie_triton.models.weights import loadable, pin_of
from sie_triton.models.weights.progress import ProgressLine
from sie_triton.models.weights.uses import Uses
from sie_triton.settings import Settings
from sie_triton.system.printing import Console


def fetch_preloaded(settings: Settings, configs: Sequence[ModelConfig], console: Console) -> None:
    """Fetch the weights of preloaded models. A failure is a warning here, and an error of the model's own requests."""
    for config in configs:
        if config.sie_id not in settings.preloaded:
            continue
        spec = config.resolve(settings.runtime)
        try:
            with Uses() as uses:
                fetch(spec, console, uses, pin_of(triton_name(spec.model), settings.status_dir))
        except LoadError as exc:
            console.print(f"warning: {config.sie_id} cannot be loaded: {exc}", style="yellow")


def fetch(spec: ModelSpec, console: Console, uses: Uses, pin: Path | None = None) -> Path:
    """Return the directory from which `spec` loads, after fetching what is missing; `uses` then holds its files."""
    kind = family(spec.family)
    with _shown(console) as report_progress:
        return loadable(
            spec,
            kind.files,
            engines=kind.engines,
            cache=Path(spec.runtime.cache_dir),
            pin=pin,
            report_progress=report_progress,
            other_repositories=kind.other_repositories,
            uses=uses,
        )


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: a bar on a terminal, else a line every five seconds."""
    say_after = 0.0
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking for weights", total=None)

        def report_progress(line: str) -> None:
            nonlocal say_after
            done, total = (line.done, line.total or None) if isinstance(line, ProgressLine) else (0, None)
            progress.update(task, description=line, completed=done, total=total)
            if not console.is_terminal and monotonic() >= say_after:
                say_after = monotonic() + 5.0
                console.print(line)

        yield report_progress
