"""`sie-triton extract`: find entities, relations, classes and objects in texts and images on a running server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sie_triton.cli.bulk.options import FILE, BulkOptions, bulk_options
from sie_triton.cli.bulk.parameters import LORA_OPTION, OPTIONS, PAGES_OPTION, PROFILE, client_arguments

if TYPE_CHECKING:
    from sie_triton.cli.bulk.run import Call
    from sie_triton.client import SIEClient


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--labels", default="", metavar="LABEL,LABEL...", help="labels to find, separated by commas")
@click.option(
    "--image", "images", type=FILE, multiple=True, help="image to search; may be repeated and combined with texts"
)
@click.option("--threshold", type=click.FloatRange(0, 1), help="minimum score of a finding; default: the model's")
@click.option("--instruction", metavar="TEXT", help="question or prompt, for models that read one")
@PROFILE
@LORA_OPTION
@PAGES_OPTION
@OPTIONS
@bulk_options
def extract(model: str, texts: tuple[str, ...], labels: str, images: tuple[Path, ...], **flags: Any) -> None:
    """Find entities, relations, classes or objects with MODEL in each TEXT and image, or in each line of a file.

    \b
    sie-triton extract org/gliner 'Ada Lovelace lived in London.' --labels person,place
    sie-triton extract org/gliner --labels person --input texts.txt --output found.jsonl
    sie-triton extract org/owlv2 --image street.jpg --labels car,'traffic light'

    Each finding is a line of fields separated by tabs: the number of the text or image, for a PDF with a colon and the
    page; "entity", label, score, start, end (characters, from 0) and words; or "relation", name, score, head and tail;
    or "classification", label and score; or "object", label, score and box (left, top, right, bottom, in pixels); or
    "line", label, score, words read in an image, and their box if known; or "data" and JSON.

    With --json or --output, line n of the output is the result of line n of the input, as JSON. --output works as in
    sie-triton encode: the same command continues an interrupted run.

    Models without labels of their own require --labels. Labels may be phrases: --labels 'place of birth,date'.
    """
    from sie_triton.cli.bulk.command import execute, json_sink, run_of
    from sie_triton.cli.bulk.lines import Form, source
    from sie_triton.cli.bulk.records import without_times
    from sie_triton.cli.extract_output import FindingsOut

    options = BulkOptions.taken_from(flags)
    names = [name for each in labels.split(",") if (name := each.strip())]
    lines = source(texts, images, options.input, options.field, Form())
    run = run_of("extract", model, lines, "jsonl", {"labels": names, **client_arguments(flags)})

    def call(client: "SIEClient") -> "Call":
        arguments = client_arguments(flags)
        return lambda lines: list(
            map(without_times, client.extract(model, [line.item for line in lines], names, **arguments))
        )

    sink = json_sink(options, run) if options.output or options.as_json else FindingsOut()
    execute(lines, sink, call, options, query_bytes=sum(len(name.encode()) for name in names))
