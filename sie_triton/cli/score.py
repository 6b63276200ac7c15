"""`sie-triton score`: relevance of texts to a query, or of the text of each pair to its query."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from sie_triton.cli.bulk.options import BulkOptions, bulk_options
from sie_triton.cli.bulk.parameters import LORA_OPTION, OPTIONS, PROFILE, client_arguments
from sie_triton.contract import SCORE_MODES

if TYPE_CHECKING:
    from sie_triton.cli.bulk.lines import InputLine
    from sie_triton.cli.bulk.part import Run
    from sie_triton.cli.bulk.records import Record, Sink
    from sie_triton.cli.bulk.run import Call
    from sie_triton.client import SIEClient

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
    from sie_triton.cli.bulk.command import execute, run_of
    from sie_triton.cli.bulk.lines import Form, source

    options = BulkOptions.taken_from(flags)
    arguments = client_arguments(flags, IN_OPTIONS)
    lines = source(texts, (), options.input, options.field, Form(has_query=query is None))
    run = run_of("score", model, lines, "jsonl", {"query": query, **arguments})

    def call(client: "SIEClient") -> "Call":
        return lambda lines: scored(client, model, query, lines, arguments)

    if query is None:
        # Most pairs need a request each: Triton batches what arrives together.
        execute(lines, _sink(options, run), call, options, max_concurrency=32)
    else:
        execute(lines, _sink(options, run), call, options, query_bytes=len(query.encode()))


def scored(
    client: "SIEClient", model: str, query: str | None, lines: Sequence["InputLine"], arguments: Mapping[str, Any]
) -> list["Record"]:
    """Return the scores of lines, in their order; `query` None: of pairs, which have the same query."""
    items = [{**line.item, "id": str(i)} for i, line in enumerate(lines)]
    result = client.score(model, lines[0].query if query is None else query, items, **arguments)
    records = {int(entry["item_id"]): {k: v for k, v in entry.items() if k != "rank"} for entry in result["scores"]}
    return [{**records[i], "item_id": item_id(line)} for i, line in enumerate(lines)]


def item_id(line: "InputLine") -> str:
    """Return the id that the client would give to the item of this line, if all were sent in one call."""
    return str(line.item["id"]) if "id" in line.item else f"item-{line.number - 1}"


def _sink(options: BulkOptions, run: "Run") -> "Sink":
    from sie_triton.cli.bulk.command import json_sink
    from sie_triton.cli.bulk.part import RankedPart
    from sie_triton.cli.score_output import PairTable, RankedOut, RankedTable

    has_ranks = run["parameters"]["query"] is not None
    if options.is_for_people:
        return RankedTable() if has_ranks else PairTable()
    if not has_ranks:
        return json_sink(options, run)
    return RankedPart(options.output, run, overwrite=options.overwrite) if options.output else RankedOut()
