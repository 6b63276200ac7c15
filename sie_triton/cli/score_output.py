"""Output of `sie-triton score`: tables for a terminal, and ranks over all lines for standard output."""

from collections.abc import Sequence
from heapq import nlargest
from tempfile import TemporaryFile
from typing import BinaryIO

from rich.table import Table
from rich.text import Text

from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.part import ranked
from sie_triton.cli.bulk.records import Record, Sink, is_error, to_json, write_out
from sie_triton.system.printing import Console


class RankedOut(Sink):
    """JSON lines with ranks on standard output. A temporary file holds them until the last score is there."""

    def __init__(self) -> None:
        self._file: BinaryIO = TemporaryFile()  # noqa: SIM115, `close` closes it

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        self._file.writelines(map(to_json, records))

    def finish(self) -> None:
        for record in ranked(self._file):
            write_out(to_json(record))

    def close(self) -> None:
        self._file.close()


class RankedTable(Sink):
    """Table of the `max_rows` most relevant lines, the best first."""

    def __init__(self, max_rows: int = 50) -> None:
        self._max_rows = max_rows
        self._best: list[tuple[float, int, InputLine, Record]] = []
        self._num_scores = 0

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        new = [
            (record["score"], -line.number, line, record)
            for line, record in zip(lines, records, strict=True)
            if not is_error(record)
        ]
        self._num_scores += len(new)
        self._best = nlargest(self._max_rows, [*self._best, *new], key=lambda each: each[:2])

    def finish(self) -> None:
        console = Console()
        table = made("rank", "score", "item", "text")
        for rank, (score, _, line, record) in enumerate(self._best):
            table.add_row(str(rank), f"{score:.4f}", record["item_id"], Text(one_line(line)))
        if self._best:
            console.print(table)
        if self._num_scores > len(self._best):
            console.print(f"{self._num_scores - len(self._best):,} more; --json prints all", style="dim")


class PairTable(Sink):
    """Score, query and text of each pair, in the order of the input."""

    def __init__(self) -> None:
        self._console = Console()

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        for line, record in zip(lines, records, strict=True):
            shown = record["error"] if is_error(record) else f"{record['score']:9.4f}"
            told = Text.assemble((shown, "bold"), f"  {' '.join(line.query.split())}  ", (one_line(line), "dim"))
            self._console.print(told, no_wrap=True, overflow="ellipsis")


def made(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def one_line(line: InputLine) -> str:
    return " ".join(line.item.get("text", "").split())
