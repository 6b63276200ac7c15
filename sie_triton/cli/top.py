"""`sie-triton top`: the forward passes of each model, live."""

import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import click
from rich.live import Live
from rich.table import Table

from sie_triton.cli.options import settings_of_running, settings_options
from sie_triton.errors import ServerError
from sie_triton.system.printing import Console
from sie_triton.system.telemetry.batches import DIRECTORY, BatchDetail, BatchTail

COLUMNS = ("model", "passes/s", "items/s", "items", "requests", "cost", "fill", "threads", "wait", "pass", "busy")


@click.command()
@click.option("--seconds", default=5.0, show_default=True, help="time that the table covers, in seconds")
@click.option("--once", is_flag=True, help="print one table after that time, and end")
@settings_options(["data_dir"])
def top(seconds: float, once: bool, **flags: Any) -> None:
    """Show the forward passes of each model on this machine, live, until Ctrl-C.

    items, requests, cost: of one pass; fill: its cost as a share of a full pass; wait: the longest in the queue before
    it, pass: its duration, both as medians; busy: passes that run at a time.

    The server must run with SIE_INSTRUMENTATION=true.
    """
    settings = settings_of_running(**flags)
    if not (settings.data_dir / DIRECTORY).is_dir():
        raise ServerError(
            f"{settings.data_dir} has no details of passes; start the server with SIE_INSTRUMENTATION=true, or name "
            "its directory with --data-dir"
        )
    window = Window(BatchTail(settings.data_dir), seconds)
    if once:
        time.sleep(seconds)
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(table_of(window.look(time.time()), seconds))
        return
    with Live(auto_refresh=False) as live:
        while True:
            time.sleep(min(1.0, seconds))
            live.update(table_of(window.look(time.time()), seconds), refresh=True)


class Window:
    """The passes of the last `seconds`, by model."""

    def __init__(self, tail: BatchTail, seconds: float) -> None:
        self._tail, self._seconds = tail, seconds
        self._passes: defaultdict[str, deque[BatchDetail]] = defaultdict(lambda: deque(maxlen=10_000))

    def look(self, now: float) -> Mapping[str, Sequence[BatchDetail]]:
        for each in self._tail.read():
            self._passes[each.model].append(each)
        for passes in self._passes.values():
            while passes and passes[0].at < now - self._seconds:
                passes.popleft()
        return self._passes


def table_of(models: Mapping[str, Sequence[BatchDetail]], seconds: float) -> Table:
    table = Table(title="Forward passes")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "model" else "right")
    for model, passes in sorted(models.items()):
        table.add_row(model, *row_of(passes, seconds))
    return table


def row_of(passes: Sequence[BatchDetail], seconds: float) -> list[str]:
    """Return the cells of a model's row.

    >>> one = BatchDetail(0.0, "m", 4, 2, 100, 0.5, 1, 3.0, 500.0)
    >>> row_of([one, one], 2.0)
    ['1.0', '4', '4.0', '2.0', '100', '50 %', '1', '3.0 ms', '500.0 ms', '0.50']
    >>> row_of([], 2.0)
    ['0', '', '', '', '', '', '', '', '', '']
    """
    if not passes:
        return ["0", *[""] * (len(COLUMNS) - 2)]
    count = len(passes)

    def mean(name: str) -> float:
        return float(sum(getattr(each, name) for each in passes)) / count

    def middle(name: str) -> str:
        return f"{median(getattr(each, name) for each in passes):.1f} ms"

    return [
        f"{count / seconds:.1f}",
        f"{mean('num_items') * count / seconds:.0f}",
        f"{mean('num_items'):.1f}",
        f"{mean('num_requests'):.1f}",
        f"{mean('cost'):.0f}",
        f"{mean('fill'):.0%}".replace("%", " %"),
        f"{mean('threads'):.0f}",
        middle("waited_ms"),
        middle("duration_ms"),
        f"{mean('duration_ms') * count / 1000 / seconds:.2f}",
    ]
