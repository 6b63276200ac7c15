"""Output of `sie-triton extract` without --json: a line of tab-separated fields for each finding."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.records import Record, Sink, is_error, write_out


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
