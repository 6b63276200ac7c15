"""Progress bar on stderr."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from sie_triton.cli.bulk.lines import InputLine, Source
from sie_triton.system.printing import Console


class Progress:
    """Count of the lines of a run; `bar` shows it. `num_skipped` lines were done by runs before."""

    def __init__(self, bar: Bar, source: Source, num_skipped: int) -> None:
        self.num_lines = self._num_skipped = num_skipped
        self._bar, self._started = bar, monotonic()
        self._has_bytes = source.num_bytes is not None
        self._task = bar.add_task(source.name, total=source.num_bytes, num_lines=num_skipped)

    def advance(self, lines: Sequence[InputLine]) -> None:
        """Count `lines`, the next ones of the input, as done."""
        self.num_lines += len(lines)
        position = lines[-1].end if self._has_bytes else self.num_lines
        self._bar.update(self._task, completed=position, num_lines=self.num_lines)

    def summary(self) -> str:
        """Describe the lines and the speed of this run in words."""
        done, seconds = self.num_lines - self._num_skipped, monotonic() - self._started
        before = f", after {self._num_skipped:,} of a run before" if self._num_skipped else ""
        return f"{done:,} lines in {seconds:.1f} s ({done / max(seconds, 1e-3):,.0f} lines/s){before}"


@contextmanager
def progress(source: Source, num_skipped: int, *, is_shown: bool) -> Iterator[Progress]:
    """Context manager of a progress bar, drawn only if `is_shown` and stderr is a terminal."""
    console = Console(stderr=True)
    lines = TextColumn("{task.fields[num_lines]:,} lines", markup=False)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), lines, TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True, disable=not (is_shown and console.is_terminal)) as bar:
        yield Progress(bar, source, num_skipped)
