"""`sie-triton extract`: find entities, relations, classes and objects in texts and images on a running server."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

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
from sie_triton.cli.bulk.records import Record, Sink, is_error, without_times, write_out
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
    options, arguments = BulkOptions.taken_from(flags), client_arguments(flags)
    names = [name for each in labels.split(",") if (name := each.strip())]
    lines = source(texts, images, options.input, options.field)
    run = run_of("extract", model, lines, "jsonl", {"labels": names, **arguments})

    def call(client: SIEClient, chunk: Sequence[InputLine]) -> list[Record]:
        return [*map(without_times, client.extract(model, [line.item for line in chunk], names, **arguments))]

    sink = json_sink(options, run) if options.output or options.as_json else FindingsOut()
    execute(lines, sink, call, options, query_bytes=sum(len(name.encode()) for name in names))


class FindingsOut(Sink):
    """Prints findings. Each line begins with the number of its text or image; of a PDF, with a colon and the page."""

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        for line, record in zip(lines, records, strict=True):
            for result in record.get("pages", [record]):
                number = f"{line.number}:{result['page']}" if "page" in result else line.number
                for cells in fields(result):
                    words = (str(cell).translate({ord(space): " " for space in "\t\n\r"}) for cell in (number, *cells))
                    write_out(("\t".join(words) + "\n").encode())


def fields(result: Record) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of each finding: its kind, then as in the help of `sie-triton extract`."""
    if is_error(result):
        yield ("error", result["error"])
        return
    for entity in result["entities"]:
        named = entity["label"], _score(entity)
        if "start" in entity:
            yield ("entity", *named, entity["start"], entity["end"], entity["text"])
        else:
            yield ("line", *named, entity["text"], *_box(entity))
    for relation in result["relations"]:
        yield ("relation", relation["relation"], _score(relation), relation["head"], relation["tail"])
    for each in result["classifications"]:
        yield ("classification", each["label"], _score(each))
    for each in result["objects"]:
        yield ("object", each["label"], _score(each), *_box(each))
    if result["data"]:
        yield ("data", json.dumps(result["data"], ensure_ascii=False))


def _box(found: Mapping[str, Any]) -> list[str]:
    """Return left, top, right and bottom as text; empty if the finding has no box."""
    return [f"{edge:.0f}" for edge in found.get("bbox") or ()]


def _score(found: Mapping[str, Any]) -> str:
    return f"{found['score']:.4f}"
