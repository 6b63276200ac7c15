"""Lines of a batch's file, each a request, and what is wrong with them, in OpenAI's form."""

import codecs
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

from pydantic import ConfigDict, Field

from sie_triton.doors.body_codec import JSON, num_values, read_json
from sie_triton.doors.failures import Failure
from sie_triton.doors.fields import Body
from sie_triton.doors.limits import BatchLimits
from sie_triton.errors import InputError

# Codes of errors by the field of a line.
CODES = {"custom_id": "invalid_custom_id", "method": "invalid_method", "url": "url_mismatch"}

# Most blank lines of a file; each one after them is an error.
MAX_BLANK = 50_000


class BatchLine(Body):
    """A line: the request's name in the output, and the request."""

    model_config = ConfigDict(extra="forbid")

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]

    @property
    def num_items(self) -> int:
        return max((len(value) for value in self.body.values() if isinstance(value, list)), default=1)


class LineError(Exception):
    """Something is wrong with a line. `param` is its field, empty if it is no object."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def record(self, number: int | None) -> dict[str, Any]:
        """Return the error as clients see it; `number` counts lines from 1."""
        return {"code": self.code, "line": number, "message": self.message, "param": self.param or None}


class Raw(NamedTuple):
    """Content of a line, of which only the beginning is here if it is too long; `end` is its position in the file."""

    number: int
    content: bytes
    end: int


def raw_lines(file: BinaryIO, max_bytes: int, number: int = 0) -> Iterator[Raw]:
    """Yield the lines from the file's position on, which follow line `number`, without up to MAX_BLANK blank ones."""
    end, num_blank = file.tell(), 0
    while content := file.readline(max_bytes + 1):
        number += 1
        end += len(content)
        last = content
        while not last.endswith(b"\n") and (last := file.readline(1 << 20)):
            end += len(last)
        content = content.removeprefix(codecs.BOM_UTF8) if number == 1 else content
        is_blank = not content.strip()
        num_blank += is_blank
        if not is_blank or num_blank > MAX_BLANK:
            yield Raw(number, content, end)


def read_line(content: bytes, endpoint: str, limits: BatchLimits) -> BatchLine:
    """Return a line for `endpoint`; LineError if it is invalid."""
    if len(content) > limits.line_bytes:
        raise LineError("line_too_long", f"has more than {limits.line_bytes} bytes; send fewer items")
    try:
        num_values(content, JSON)
        line = BatchLine.read(read_json(content), 0)
    except Failure as exc:
        raise LineError("invalid_json_line", exc.message.removeprefix("body: ")) from exc
    except InputError as exc:
        raise LineError(CODES.get(exc.field, "invalid_request"), str(exc), exc.field) from exc
    if line.url != endpoint:
        raise LineError("url_mismatch", f"url: must be the batch's endpoint, {endpoint}; got {line.url[:80]!r}", "url")
    return line


def check_lines(path: Path, endpoint: str, limits: BatchLimits) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of requests in a file, and its errors: all that are named, or none."""
    errors: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    count = 0
    with path.open("rb") as file:
        for number, content, _ in raw_lines(file, limits.line_bytes):
            count += 1
            try:
                if count > limits.num_requests:
                    raise LineError("too_many_tasks", f"is beyond {limits.num_requests} requests; split the file")
                name = read_line(content, endpoint, limits).custom_id
                digest = blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
                if digest in seen:
                    raise LineError("duplicate_custom_id", f"custom_id: {name[:80]!r} occurs twice", "custom_id")
                seen.add(digest)
            except LineError as exc:
                errors.append(exc.record(number))
                if len(errors) == limits.num_errors or exc.code == "too_many_tasks":
                    break
    if not count:
        errors.append(LineError("empty_file", "the file has no requests").record(None))
    return count, errors
