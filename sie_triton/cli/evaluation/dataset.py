"""Datasets for retrieval: texts, queries, and which texts answer which query. Standard library only."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.errors import InputError

# Limits of a dataset on disk.
MAX_LINE_BYTES = 16 << 20
MAX_LINES = 20_000_000

LAYOUT = "a dataset is a directory with corpus.jsonl, queries.jsonl and qrels/test.tsv"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Texts by id; `relevant` has, by query and document, a degree of relevance above 0."""

    name: str
    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]


def read_dataset(directory: Path) -> Dataset:
    """Read a directory in the layout of BEIR; queries without a relevant document are left out.

    Raise InputError with file and line if it is invalid.
    """
    corpus, queries = _texts(directory / "corpus.jsonl"), _texts(directory / "queries.jsonl")
    path = directory / "qrels" / "test.tsv"
    relevant = _relevant(path)
    for query, documents in relevant.items():
        for missing in [query] if query not in queries else [each for each in documents if each not in corpus][:1]:
            file = "queries" if missing == query else "corpus"
            raise InputError(f"{path}: names {missing!r}, which {file}.jsonl does not contain")
    if not relevant:
        raise InputError(f"{path}: no query has a relevant document; give scores above 0 in its third column")
    return Dataset(directory.resolve().name, corpus, {name: queries[name] for name in relevant}, relevant)


def with_title(title: str | None, text: str) -> str:
    """Return the text of a document as models read it: its title, if it has one, and its text."""
    return f"{title or ''} {text}".strip()


def _texts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise InputError(f"{place}: is not JSON ({exc})") from exc
        name, text, title = _fields(place, row)
        if name in found:
            raise InputError(f"{place}: _id {name!r} occurs twice")
        found[name] = with_title(title, text)
    return found


def _fields(place: str, row: Any) -> tuple[str, str, str]:
    match row:
        case {"_id": str(name), "text": str(text)} if isinstance(title := row.get("title") or "", str):
            return name, text, title
    raise InputError(f'{place}: must be an object with strings "_id" and "text", and optionally "title"')


def _relevant(path: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for place, line in _lines(path):
        cells = line.rstrip("\r\n").split("\t")
        if cells[0] == "query-id":
            continue
        try:
            query, document, degree = cells
            number = int(degree)
        except ValueError as exc:
            raise InputError(f"{place}: must be query-id, corpus-id and a whole number, separated by tabs") from exc
        if number > 0:
            found.setdefault(query, {})[document] = number
    return found


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place, PATH:NUMBER, and the text of each line that is not blank."""
    try:
        with path.open("rb") as file:
            for number in range(1, MAX_LINES + 2):
                if not (line := file.readline(MAX_LINE_BYTES + 1)):
                    return
                if len(line) > MAX_LINE_BYTES or number > MAX_LINES:
                    raise InputError(
                        f"{path}:{number}: at most {MAX_LINES} lines of at most {MAX_LINE_BYTES} bytes are read"
                    )
                if line.strip():
                    yield f"{path}:{number}", line.decode()
    except OSError as exc:
        raise InputError(f"{path}: cannot be read ({exc.strerror}); {LAYOUT}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(f"{path}:{number}: is not UTF-8 ({exc.reason})") from exc
