"""Tables of the benchmarks: on the terminal, and as Markdown for a report."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Rows = Sequence[Sequence[str]]

Figures = dict[str, float]


def print_table(title: str, head: Sequence[str], rows: Rows) -> None:
    table = Table(title=title)
    for column in head:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def markdown_table(head: Sequence[str], rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def rows_with_ratios(found: Mapping[Any, Sequence[Figures]], labels: Mapping[str, str]) -> list[list[str]]:
    """Return a row for each of the figures that `labels` name, with a column for each entry of `found`.

    A cell is the median of the rounds; all but those of the first column add the median of the rounds' ratios to it.
    """
    first = next(iter(found.values()))
    rows = []
    for name, label in labels.items():
        row = [label]
        for measured in found.values():
            median = statistics.median(each[name] for each in measured)
            ratio = statistics.median(each[name] / base[name] for each, base in zip(measured, first, strict=True))
            shown = f"{median:,.0f}" if median >= 100 else f"{median:.1f}"
            row.append(shown if measured is first else f"{shown} (× {ratio:.2f})")
        rows.append(row)
    return rows
