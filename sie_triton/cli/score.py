"""`sie-triton score`: relevance of texts to a query, or of the text of each pair to its query."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import click
from rich.table import Table
from rich.text import Text

from sie_triton.cli.bulk.command import execute, json_sink, run_of
from sie_triton.cli.bulk.lines import Form, InputLine, source
from sie_triton.cli.bulk.options import LORA_OPTION, OPTIONS, PROFILE, BulkOptions, bulk_options, client_arguments
from sie_triton.cli.bulk.part import RankedPart, Run, ranked
from sie_triton.cli.bulk.records import Record, Sink, is_error, to_json, write_out
from sie_triton.client import SIEClient
from sie_triton.contract import SCORE_MODES
from sie_triton.system.printing import Console

# Parameters that the client takes in its argument `options`.
IN_OPTIONS = ("score_mode",)


@click.command()
@click.argument("model")
@click.argument("query", required=False)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--instruction", metavar="TEXT", help="prompt before the query, in place of the model's own")
@click.option("--score-mode", type=click.Choice([*SCORE_MODES]), help="how query and texts are compared")
@PROFILE
@LORA_OPTION
@OPTIONS
@bulk_options
def score(model: str, query: str | None, texts: tuple[str, ...], **flags: Any) -> None:
    """Score each TEXT, or each line of a file or of standard input, by its relevance to QUERY.

    \b
    sie-triton score org/reranker 'What climbs?' 'Ships sail.' 'Roses climb.'
    sie-triton score org/reranker 'What climbs?' --input texts.txt --json | jq -s 'sort_by(.rank)'
    sie-triton score org/reranker --input pairs.jsonl --output scores.jsonl

    In a terminal, the result is a table, the most relevant text first. Otherwise line n of the output is the result of
    line n of the input, as JSON: item_id (its id, else "item-" and its position from 0), score, and rank among all
    lines, from 0. Ranks are known when the last line is scored.

    Without a QUERY, each line is a pair: a JSON object with query, text and optionally id. Pairs have no ranks.
    Consecutive pairs with the same query are sent together.

    --output works as in sie-triton encode: the same command continues an interrupted run.
    """
    options = BulkOptions.taken_from(flags)
    arguments = client_arguments(flags, IN_OPTIONS)
    lines = source(texts, (), options.input, options.field, Form(has_query=query is None))
    run = run_of("score", model, lines, "jsonl", {"query": query, **arguments})

    def call(client: SIEClient, chunk: Sequence[InputLine]) -> list[Record]:
        return scored(client, model, query, chunk, arguments)

    if query is None:
        # Most pairs need a request each: Triton batches what arrives together.
        execute(lines, _sink(options, run), call, options, max_concurrency=32)
    else:
        execute(lines, _sink(options, run), call, options, query_bytes=len(query.encode()))


def scored(
    client: SIEClient, model: str, query: str | None, lines: Sequence[InputLine], arguments: Mapping[str, Any]
) -> list[Record]:
    """Return the scores of lines, in their order; `query` None: of pairs, which have the same query."""
    items = [{**line.item, "id": str(i)} for i, line in enumerate(lines)]
    result = client.score(model, lines[0].query if query is None else query, items, **arguments)
    records = {int(entry["item_id"]): {k: v for k, v in entry.items() if k != "rank"} for entry in result["scores"]}
    return [{**records[i], "item_id": item_id(line)} for i, line in enumerate(lines)]


def item_id(line: InputLine) -> str:
    """Return the id that the client would give to the item of this line, if all were sent in one call."""
    return str(line.item["id"]) if "id" in line.item else f"item-{line.number - 1}"


def _sink(options: BulkOptions, run: Run) -> Sink:
    has_ranks = run["parameters"]["query"] is not None
    if options.is_for_people:
        return RankedTable() if has_ranks else PairTable()
    if not has_ranks:
        return json_sink(options, run)
    return RankedPart(options.output, run, overwrite=options.overwrite) if options.output else RankedOut()


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
