"""Output of `sie-triton encode` in a terminal: a short summary of each result instead of its numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.records import Record, Sink, is_error
from sie_triton.system.printing import Console


class Summaries(Sink):
    """Prints each result as its text and a row for each output."""

    def __init__(self) -> None:
        self._console = Console()

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        for line, record in zip(lines, records, strict=True):
            self._console.print(heading(line), no_wrap=True, overflow="ellipsis")
            self._console.print(table(record))


def heading(line: InputLine) -> Text:
    """Return the number of a line, and its text or image."""
    shown = " ".join(str(line.item.get("text", line.item.get("image", ""))).split())
    return Text.assemble((f"{line.number}  ", "dim"), (shown, "bold"))


def table(record: Record) -> Table:
    made = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2, 0, 1))
    for row in rows(record):
        made.add_row(*map(Text, row))
    return made


def rows(record: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the name, shape and first values of each output; for each page of a PDF, or chunk of a text.

    >>> list(rows({"dense": np.array([0.5, -0.25], np.float32), "token_count": 3, "truncated": True}))
    [('dense', '2 × float32', '0.5000  -0.2500'), ('truncated', '3 tokens', 'the rest of the text was not read')]
    """
    if is_error(record):
        yield "error", "", record["error"]
        return
    for page in record.get("pages", ()):
        yield from ((f"page {page['page']} {name}", about, values) for name, about, values in rows(page))
    for chunk in record.get("chunks", ()):
        place = f"{chunk['start']}:{chunk['end']}"
        yield from ((f"{place} {name}", about, values) for name, about, values in rows(chunk))
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            yield name, shape(value), first_values(value)
        elif isinstance(value, Mapping) and "indices" in value:
            yield name, f"{len(value['indices'])} entries", strongest(value)
    if record.get("truncated"):
        yield "truncated", f"{record['token_count']} tokens", "the rest of the text was not read"


def shape(array: npt.NDArray[Any]) -> str:
    return f"{' × '.join(map(str, array.shape))} × {array.dtype}"


def first_values(array: npt.NDArray[Any]) -> str:
    """Return the first values of a vector, or of the first row."""
    flat = array.reshape(-1)
    shown = [f"{value:.4f}" if array.dtype.kind == "f" else str(value) for value in flat[:4]]
    return "  ".join([*shown, *(["…"] if len(flat) > 4 else [])])


def strongest(sparse: Mapping[str, Any]) -> str:
    """Return the token ids with the greatest values, and these.

    >>> strongest({"indices": np.array([7, 9]), "values": np.array([0.25, 1.5])})
    '#9 1.5000  #7 0.2500'
    """
    indices, values = sparse["indices"], sparse["values"]
    order = np.argsort(-values, kind="stable")[:3]
    shown = [f"#{indices[i]} {values[i]:.4f}" for i in order]
    return "  ".join([*shown, *(["…"] if len(values) > 3 else [])])
