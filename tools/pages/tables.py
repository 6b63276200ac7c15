"""Markdown tables."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar in a cell is escaped.

    >>> print(table(["a", "b"], [["1", "2|3"]]), end="")
    | a | b |
    |---|---|
    | 1 | 2\\|3 |
    """
    lines = [row(head), "|" + "---|" * len(head), *map(row, rows)]
    return "".join(f"{line}\n" for line in lines)


def row(cells: Sequence[str]) -> str:
    """
    >>> row(["a", "", "b"])
    '| a | | b |'
    """
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in escaped) + "|"
