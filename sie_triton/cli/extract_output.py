"""Output of `sie-triton extract`: highlighted texts and tables in a terminal, else tab-separated lines."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sie_triton.cli.bulk.lines import Line
from sie_triton.cli.bulk.records import Record, Sink, is_error, write_out
from sie_triton.client import Entity
from sie_triton.system.printing import Console

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")

SPACES = {ord(space): " " for space in "\t\n\r"}


class FindingsOut(Sink):
    """Prints findings highlighted in their texts if standard output is a terminal with colours, else as lines."""

    def __init__(self) -> None:
        self._console = Console()
        self._colours: dict[str, str] = {}

    def _write(self, lines: Sequence[Line], records: Sequence[Record]) -> None:
        console = self._console
        if console.is_terminal and console.color_system and not console.no_color:
            shown = [str(line.item.get("text", line.item.get("image", ""))) for line in lines]
            show_in_colour(console, shown, records, self._colours)
            return
        for number, result in pages([str(line.number) for line in lines], records):
            for cells in fields(result):
                write_out(("\t".join(str(cell).translate(SPACES) for cell in (number, *cells)) + "\n").encode())


def pages(names: Sequence[str], results: Sequence[Record]) -> list[tuple[str, Record]]:
    """Return pairs of a name and a result, one per item, or one per page of a PDF."""
    return [
        (f"{name}:{page['page']}" if "page" in page else name, page)
        for name, result in zip(names, results, strict=True)
        for page in result.get("pages", [result])
    ]


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


def show_in_colour(console: Console, texts: Sequence[str], results: Sequence[Record], colours: dict[str, str]) -> None:
    """Print the findings in texts or images. `colours` by label gets those of new labels."""
    for text, result in pages(texts, results):
        if is_error(result):
            console.print(Text.assemble(text, (f" {result['error']}", "bold red")), soft_wrap=True)
            continue
        entities = [entity for entity in result["entities"] if "start" in entity]
        for entity in entities:
            colours.setdefault(entity["label"], COLOURS[len(colours) % len(COLOURS)])
        console.print(in_colour(text, entities, colours), soft_wrap=True)
        for table in tables(result):
            console.print(table)


def in_colour(text: str, entities: Sequence[Entity], colours: Mapping[str, str]) -> Text:
    """Return the text with each entity highlighted and followed by its label.

    An entity within another follows that one, with its label and words.
    """
    shown, end = Text(), 0
    for entity in sorted(entities, key=lambda each: (each["start"], -each["end"])):
        label, colour = entity["label"], colours[entity["label"]]
        if entity["start"] >= end:
            shown.append(text[end : entity["start"]])
            shown.append(entity["text"], style=f"bold {colour}")
            shown.append(f" {label}", style=f"italic {colour}")
            end = entity["end"]
        else:
            shown.append(f" {label}: {entity['text']}", style=f"italic {colour}")
    return shown.append(text[end:])


def tables(result: Record) -> Iterator[Table]:
    """Yield tables of the findings that have no position in the text."""
    relations, classes, data = result["relations"], result["classifications"], result["data"]
    if read := [each for each in result["entities"] if "start" not in each]:
        yield _table(("line", "label", "score", "box"), [(each["text"], *_seen(each)) for each in read])
    if relations:
        found = [(each["head"], each["relation"], each["tail"], _score(each)) for each in relations]
        yield _table(("head", "relation", "tail", "score"), found)
    if classes:
        yield _table(("class", "score"), [(each["label"], _score(each)) for each in classes])
    if result["objects"]:
        yield _table(("object", "score", "box"), [_seen(each) for each in result["objects"]])
    if data:
        rows = [(key, json.dumps(value, ensure_ascii=False, indent=1)) for key, value in data.items()]
        yield _table(("data", ""), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _seen(found: Mapping[str, Any]) -> tuple[str, str, str]:
    return found["label"], _score(found), ", ".join(_box(found))


def _box(found: Mapping[str, Any]) -> list[str]:
    """Return left, top, right and bottom as text; empty if the finding has no box."""
    return [f"{edge:.0f}" for edge in found.get("bbox") or ()]


def _score(found: Mapping[str, Any]) -> str:
    return f"{found['score']:.4f}"
