"""Read the lines of a file, of standard input or of the command line as items. The text of one line is in memory."""

import codecs
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import click
import orjson

from sie_triton.client.calls import BYTES_A_BYTE, FILE_BYTES, PIECE_BYTES, PIECE_ITEMS


@dataclass(frozen=True, slots=True)
class InputLine:
    """Line of the input."""

    number: int  # from 1
    item: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0  # of the item, in bytes of text
    end: int = 0  # position after the line, in bytes of the input
    query: str = ""  # of a pair
    problem: str = ""  # why the line cannot be sent; empty if it can


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a line: plain text, or a JSON object with the text in `field`; `has_query`: and a query in `query`."""

    field: str = ""
    has_query: bool = False

    def parse(self, number: int, content: bytes, end: int) -> InputLine:
        try:
            item, query = self._item(content)
        except ValueError as exc:
            return InputLine(number, end=end, problem=str(exc))
        return InputLine(number, item, len(item["text"].encode()), end, query)

    def _item(self, content: bytes) -> tuple[dict[str, Any], str]:
        """Return the item and the query of a line. Raise ValueError with the problem of an invalid line."""
        try:
            text = content.decode()
        except UnicodeDecodeError as exc:
            raise ValueError(f"is not UTF-8 ({exc.reason} at byte {exc.start})") from exc
        if not text.strip():
            raise ValueError("is blank")
        if not self.field:
            return {"text": text}, ""
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            raise ValueError(f"is not JSON ({exc}); {self._allowed()}") from exc
        if not isinstance(found, dict):
            raise ValueError(f"is not a JSON object; {self._allowed()}")
        item = {"text": _string(found, self.field)}
        if found.get("id") is not None:
            item["id"] = found["id"]
        return item, _string(found, "query") if self.has_query else ""

    def _allowed(self) -> str:
        if not self.has_query:
            return f'give {{"{self.field}": "…"}}'
        return f'give {{"query": "…", "{self.field}": "…"}}, or a QUERY on the command line'


def _string(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"has no field {name!r} with a string; its fields are {', '.join(found) or 'none'}")
    if not value.strip():
        raise ValueError(f"has a blank field {name!r}")
    return value


class Source(ABC):
    """Input of a run. `name` is for messages. `num_bytes` is None if the size is unknown.

    `identity` is recorded with the output, to notice on resuming that the input is another one; None if the input
    cannot be read again.
    """

    name: str
    identity: Mapping[str, Any] | None
    num_bytes: int | None = None

    @abstractmethod
    def lines(self, num_skipped: int = 0) -> Iterator[InputLine]:
        """Yield the lines after the first `num_skipped`."""


class Arguments(Source):
    """Texts and images of the command line; each counts as a line."""

    name = "the command line"

    def __init__(self, texts: Sequence[str], images: Sequence[Path] = ()) -> None:
        self._lines: list[dict[str, Any]] = [{"text": text} for text in texts]
        self._lines += [{"image": path} for path in images]
        told = orjson.dumps([{kind: str(value) for kind, value in item.items()} for item in self._lines])
        self.identity = {"arguments": blake2b(told, digest_size=16).hexdigest()}

    def lines(self, num_skipped: int = 0) -> Iterator[InputLine]:
        for number, item in enumerate(self._lines[num_skipped:], num_skipped + 1):
            yield InputLine(number, item, _size(item), number)


def _size(item: Mapping[str, Any]) -> int:
    if "image" in item:
        return int(FILE_BYTES + item["image"].stat().st_size // BYTES_A_BYTE)
    return len(item["text"].encode())


class Stream(Source):
    """Lines of a file or of standard input. A longer one is refused without being read into memory as a whole."""

    def __init__(self, stream: BinaryIO, name: str, form: Form, max_line_bytes: int = 16 << 20) -> None:
        self.name, self._max_line_bytes = name, max_line_bytes
        self._stream, self._form = stream, form
        about = _file_status(stream)
        self.identity = {"size": about.st_size, "modified_ns": about.st_mtime_ns} if about else None
        self.num_bytes = about.st_size if about else None

    def lines(self, num_skipped: int = 0) -> Iterator[InputLine]:
        end = 0
        for number, (content, num_bytes) in enumerate(_lines(self._stream, self._max_line_bytes), 1):
            end += num_bytes
            if number <= num_skipped:
                continue
            content = content.removesuffix(b"\n").removesuffix(b"\r")
            if len(content) > self._max_line_bytes:
                yield InputLine(number, end=end, problem=f"is longer than {self._max_line_bytes >> 20} MiB")
            else:
                yield self._form.parse(number, content, end)


def _file_status(stream: BinaryIO) -> os.stat_result | None:
    """Return the status of the file that a stream reads; None for a pipe, a terminal or a stream in memory."""
    try:
        about = os.fstat(stream.fileno())
    except OSError:
        return None
    return about if stat.S_ISREG(about.st_mode) else None


def _lines(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield the content and the size in bytes of each line. Of a long line only the beginning is content.

    A byte order mark at the beginning of the input is no content.
    """
    is_first = True
    while content := stream.readline(max_bytes + 2):
        num_bytes, last = len(content), content
        while not last.endswith(b"\n") and (last := stream.readline(1 << 20)):
            num_bytes += len(last)
        yield content.removeprefix(codecs.BOM_UTF8) if is_first else content, num_bytes
        is_first = False


def source(
    texts: Sequence[str], images: Sequence[Path], path: Path | None, field: str | None, form: Form = Form()
) -> Source:
    """Return the input that a command names: texts and images, else the file `path`, else standard input.

    `form` is the form of lines unless `field` or the name of the file says otherwise.
    """
    if texts or images:
        for flag, value in (("--input", path), ("--field", field)):
            if value is not None:
                raise click.UsageError(f"{flag} is for lines of a file; leave out either it or the texts and images")
        return Arguments(texts, images)
    is_json = field is not None or form.has_query or (path is not None and path.suffix in (".jsonl", ".ndjson"))
    form = Form(field or "text", form.has_query) if is_json else form
    if path is not None and str(path) != "-":
        return Stream(path.open("rb"), str(path), form)
    if sys.stdin.isatty():
        raise click.UsageError("give a TEXT or --input FILE, or pipe texts to standard input, one per line")
    return Stream(sys.stdin.buffer, "standard input", form)


def chunks(
    lines: Iterable[InputLine], query_bytes: int = 0, max_items: int = PIECE_ITEMS, max_bytes: int = PIECE_BYTES
) -> Iterator[list[InputLine]]:
    """Yield lists of consecutive lines, each for one request of the client; all lines of a list have the same query.

    `query_bytes` is the size of a query that is sent with each list, which counts for each item.

    >>> lines = [InputLine(i, size=size) for i, size in enumerate([3, 3, 3, 9, 1])]
    >>> [[line.number for line in chunk] for chunk in chunks(lines, max_items=2, max_bytes=8)]
    [[0, 1], [2], [3], [4]]
    """
    chunk: list[InputLine] = []
    room = max_bytes
    for line in lines:
        size = line.size + query_bytes + len(line.query.encode())
        if chunk and (size > room or len(chunk) == max_items or line.query != chunk[0].query):
            yield chunk
            chunk, room = [], max_bytes
        chunk.append(line)
        room -= size
    if chunk:
        yield chunk
