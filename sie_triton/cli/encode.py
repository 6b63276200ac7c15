"""`sie-triton encode`: vectors of texts and images from a running server, for a terminal, a pipe or a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from sie_triton.cli.bulk.command import execute, json_sink, run_of
from sie_triton.cli.bulk.lines import InputLine, source
from sie_triton.cli.bulk.options import (
    FILE,
    LORA_OPTION,
    OPTIONS,
    PAGES_OPTION,
    PROFILE,
    BulkOptions,
    bulk_options,
    client_arguments,
)
from sie_triton.cli.bulk.part import NpyPart
from sie_triton.cli.bulk.records import Record, Sink, is_error, without_times
from sie_triton.client import SIEClient
from sie_triton.contract import ENCODE_OUTPUTS, OUTPUT_DTYPES
from sie_triton.contract.tensors import DENSE
from sie_triton.system.printing import Console

# Parameters that the client takes in its argument `options`.
IN_OPTIONS = ("dimensions", "normalize")


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--image", "images", type=FILE, multiple=True, help="image to encode; may be repeated, and follows texts")
@click.option("--output-types", metavar="TYPE,TYPE...", help="outputs to return, such as dense,sparse; default: all")
@click.option("--output-dtype", type=click.Choice(OUTPUT_DTYPES), help="number format of vectors; default: float32")
@click.option("--is-query/--no-is-query", default=None, help="encode as queries, or as documents; default: documents")
@click.option("--instruction", metavar="TEXT", help="prompt before each text, in place of the model's own")
@click.option("--dimensions", type=click.IntRange(1), metavar="N", help="leading dimensions to keep of dense vectors")
@click.option("--normalize/--no-normalize", default=None, help="scale dense vectors to unit length, or do not")
@PROFILE
@LORA_OPTION
@PAGES_OPTION
@OPTIONS
@click.option(
    "--format", type=click.Choice(["jsonl", "npy"]), help="format of --output; default: npy for FILE.npy, else jsonl"
)
@bulk_options
def encode(model: str, texts: tuple[str, ...], images: tuple[Path, ...], format: str | None, **flags: Any) -> None:
    """Encode each TEXT and image with MODEL, or each line of a file or of standard input.

    \b
    sie-triton encode org/model 'Hello, world' 'Bonjour' --is-query
    sie-triton encode org/model --input texts.txt --output vectors.npy --dimensions 128
    sie-triton encode org/model --field text --output-types sparse < texts.jsonl | jq .sparse

    In a terminal, each result is a summary. Otherwise line n of the output is the result of line n of the input, as
    JSON: its id if the input has one, the outputs, token_count, and truncated if the model read only the beginning of
    the text. An .npy file has one row per line, of dense, or of the one output type that --output-types names.

    Results go to FILE.part, which becomes FILE of --output when it is complete. If a run ends early, even by kill -9,
    the same command continues it. It refuses to continue if model, parameters or input have changed, or if the input
    came through a pipe. A line that is blank or not UTF-8 is an error.
    """
    options = BulkOptions.taken_from(flags)
    form = format or ("npy" if options.output and options.output.suffix == ".npy" else "jsonl")
    if form == "npy":
        flags["output_types"] = row_type(flags["output_types"])
        _check_rows_fit(options)
    arguments = client_arguments(flags, IN_OPTIONS)
    lines = source(texts, images, options.input, options.field)
    run = run_of("encode", model, lines, form, arguments)

    def call(client: SIEClient, chunk: Sequence[InputLine]) -> list[Record]:
        return [*map(without_times, client.encode(model, [line.item for line in chunk], **arguments))]

    sink: Sink
    if options.output and form == "npy":
        sink = NpyPart(options.output, run, arguments["output_types"], overwrite=options.overwrite)
    else:
        sink = Summaries() if options.is_for_people else json_sink(options, run)
    execute(lines, sink, call, options)


def row_type(output_types: str | None) -> str:
    """Return the output type whose vectors are the rows of an .npy file.

    >>> row_type(None), row_type("muvera")
    ('dense', 'muvera')
    """
    name = output_types or DENSE.name
    output = ENCODE_OUTPUTS.get(name)
    if "," in name or (output is not None and any(tensor.lengths for tensor in output.tensors)):
        raise click.UsageError(
            f"--output-types: an .npy file has rows of one length and of one output type, not {name}; give dense or "
            "muvera, or --format jsonl"
        )
    return name


def _check_rows_fit(options: BulkOptions) -> None:
    if options.output is None:
        raise click.UsageError("--format npy: needs --output FILE")
    if options.skip_errors:
        raise click.UsageError("--skip-errors: a row of an .npy file cannot be an error; give --format jsonl")


class Summaries(Sink):
    """Prints each result in a terminal, as its text and a row for each output."""

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
