"""Tables of the benchmarks: on the terminal, and as Markdown for a report."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

Rows = Sequence[Sequence[str]]


def print_table(title: str, head: Sequence[str], rows: Rows) -> None:
    table = Table(title=title)
    for column in head:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def markdown_table(head: Sequence[str], rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))
