"""Records, one per line of the input, and sinks that take them in order."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from sie_triton.cli.bulk.lines import InputLine
from sie_triton.errors import SIEError
from sie_triton.system.printing import shown

Record = Mapping[str, Any]

# A record of an error begins with this key, and no other record has it.
LINE = "line"
ERROR_PREFIX = b'{"line":'


def error_record(line: InputLine, problem: str) -> Record:
    return {LINE: line.number, "error": problem}


def is_error(record: Record) -> bool:
    return LINE in record


def without_times(result: Mapping[str, Any]) -> Record:
    """Return the record of a result of the client: its id first, and no times, so that equal lines have equal records.

    >>> without_times({"pages": [{"timing": {}, "page": 3}], "timing": {}, "id": "a"})
    {'id': 'a', 'pages': [{'page': 3}]}
    """
    record = {**({"id": result["id"]} if "id" in result else {}), **result}
    record.pop("timing", None)
    for kind in record.keys() & {"pages", "chunks"}:
        record[kind] = [without_times(part) for part in record[kind]]
    return record


def to_json(record: Record) -> bytes:
    """Return a line of JSON, with its end. Arrays become lists; float32 has the fewest digits that identify it."""
    return orjson.dumps(record, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class Sink(ABC):
    """Takes the records of lines in order. `num_skipped` lines are there already, `num_errors` of all are errors."""

    num_skipped = 0
    num_errors = 0

    def write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        """Take the records of the next lines, at least one."""
        self.num_errors += sum(map(is_error, records))
        self._write(lines, records)

    @abstractmethod
    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None: ...

    def finish(self) -> None:  # noqa: B027, most sinks have nothing to complete
        """Complete the output after the last record."""

    def close(self) -> None:  # noqa: B027, nor to close
        """Close the files of the sink, whether it is complete or not."""


class JsonOut(Sink):
    """JSON lines on standard output."""

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        write_out(b"".join(map(to_json, records)))


def write_out(content: bytes) -> None:
    """Write to standard output. End the process if its reader, such as `head`, has closed the pipe."""
    if sys.stdout.isatty():
        content = shown(content.decode()).encode()
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as exc:
        raise SIEError(f"standard output: cannot be written ({exc.strerror or exc})") from exc
