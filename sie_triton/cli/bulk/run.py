"""Send chunks of lines in parallel and write their records in the order of the input, with a progress bar on stderr."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from sie_triton.cli.bulk.lines import InputLine, Source
from sie_triton.cli.bulk.records import Record, Sink, error_record
from sie_triton.client import SIEClient
from sie_triton.client.fit import Misfit
from sie_triton.contract import ITEMS
from sie_triton.errors import InputError, ModelError, SIEError
from sie_triton.system.printing import Console

# How many chunks per request in flight are read ahead, or wait for their turn to be written.
CHUNKS_A_REQUEST = 2

# Field of an error that an item causes, such as text[3] or items[3].image.
ITEM_FIELD = re.compile(rf"(items|{'|'.join(ITEMS)})(\[\d+\])?(\.\w+)?")

Call = Callable[[Sequence[InputLine]], list[Record]]


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


def run(
    chunks: Iterable[Sequence[InputLine]],
    call: Call,
    sink: Sink,
    client: SIEClient,
    *,
    max_concurrency: int,
    skip_errors: bool,
    progress: Progress,
) -> None:
    """Write one record per line to `sink`, at most `max_concurrency` requests at a time.

    `call` returns the records of lines; it runs on the threads of a pool. Close `client` if anything fails, so that the
    requests in flight end.
    """
    waiting: deque[tuple[Sequence[InputLine], Future[list[Record]]]] = deque()

    def write_next() -> None:
        lines, future = waiting.popleft()
        sink.write(lines, future.result())
        progress.advance(lines)

    pool = ThreadPoolExecutor(max_concurrency, "sie-bulk")
    try:
        for lines in chunks:
            if len(waiting) >= CHUNKS_A_REQUEST * max_concurrency:
                write_next()
            waiting.append((lines, pool.submit(records, call, lines, skip_errors=skip_errors)))
        while waiting:
            write_next()
    except BaseException:
        client.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def records(call: Call, lines: Sequence[InputLine], *, skip_errors: bool) -> list[Record]:
    """Return one record per line. Raise InputError for the first line with an error, unless errors are skipped."""
    if not skip_errors:
        for line in lines:
            if line.problem:
                raise refused(line, line.problem)
    found = iter(_of_sent(call, [line for line in lines if not line.problem], skip_errors))
    return [error_record(line, line.problem) if line.problem else next(found) for line in lines]


def _of_sent(call: Call, lines: Sequence[InputLine], skip_errors: bool) -> list[Record]:
    """Return the records of lines. If the server refuses them, send them in halves, to find the lines at fault."""
    if not lines:
        return []
    try:
        return call(lines)
    except SIEError as exc:
        if not _is_of_an_item(exc):
            raise
        if len(lines) > 1:
            middle = len(lines) // 2
            return [record for half in (lines[:middle], lines[middle:]) for record in _of_sent(call, half, skip_errors)]
        problem = str(exc).removeprefix(f"{exc.field}: ")
        if not skip_errors:
            raise refused(lines[0], problem) from exc
        return [error_record(lines[0], problem)]


def _is_of_an_item(error: SIEError) -> bool:
    """Return True if an item may be at fault, not a parameter, the model or the server."""
    if isinstance(error, Misfit):
        return False
    return isinstance(error, ModelError) or (isinstance(error, InputError) and bool(ITEM_FIELD.fullmatch(error.field)))


def refused(line: InputLine, problem: str) -> InputError:
    return InputError(
        f"line {line.number}: {problem}; with --skip-errors, the output has the error in place of a result"
    )
