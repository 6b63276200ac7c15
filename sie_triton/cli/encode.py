"""`sie-triton encode`: vectors of texts and images from a running server, for a terminal, a pipe or a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sie_triton.cli.bulk.options import FILE, BulkOptions, bulk_options
from sie_triton.cli.bulk.parameters import LORA_OPTION, OPTIONS, PAGES_OPTION, PROFILE, client_arguments
from sie_triton.contract import ENCODE_OUTPUTS, OUTPUT_DTYPES
from sie_triton.contract.tensors import DENSE

if TYPE_CHECKING:
    from sie_triton.cli.bulk.part import Run
    from sie_triton.cli.bulk.records import Sink
    from sie_triton.cli.bulk.run import Call
    from sie_triton.client import SIEClient

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
    from sie_triton.cli.bulk.command import execute, run_of
    from sie_triton.cli.bulk.lines import Form, source
    from sie_triton.cli.bulk.records import without_times

    options = BulkOptions.taken_from(flags)
    form = format or ("npy" if options.output and options.output.suffix == ".npy" else "jsonl")
    if form == "npy":
        flags["output_types"] = row_type(flags["output_types"])
        _check_rows_fit(options)
    arguments = client_arguments(flags, IN_OPTIONS)
    lines = source(texts, images, options.input, options.field, Form())
    run = run_of("encode", model, lines, form, arguments)

    def call(client: "SIEClient") -> "Call":
        return lambda lines: list(map(without_times, client.encode(model, [line.item for line in lines], **arguments)))

    execute(lines, _sink(options, run), call, options)


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


def _sink(options: BulkOptions, run: "Run") -> "Sink":
    from sie_triton.cli.bulk.command import json_sink
    from sie_triton.cli.bulk.part import NpyPart
    from sie_triton.cli.encode_output import Summaries

    if options.output and run["format"] == "npy":
        return NpyPart(options.output, run, run["parameters"]["output_types"], overwrite=options.overwrite)
    return Summaries() if options.is_for_people else json_sink(options, run)
