"""Forms with a file: multipart/form-data (RFC 7578), by Starlette's parser, which bounds heads and their number."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from sie_triton.doors.failures import invalid

# It warns of each invalid form, of which the client is told.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

# Bytes of a body in memory that are parsed before other requests get a turn.
PIECE_BYTES = 1024**2


class Form(MultiPartParser):
    """Parser of a form with one file, which it writes to `file`. `is_whole`: the last boundary was there."""

    is_whole = False

    def __init__(
        self, content_type: str, body: AsyncGenerator[bytes, None], file: IO[bytes], max_fields: int, max_bytes: int
    ) -> None:
        limits = {"max_files": 1, "max_fields": max_fields, "max_part_size": max_bytes}
        super().__init__(Headers({"content-type": content_type}), body, **limits)
        self._file: Any = file

    def on_headers_finished(self) -> None:
        self._charset = "utf-8"  # whatever the client's header says
        super().on_headers_finished()
        part = self._current_part
        if part.file is not None or part.field_name == "file":  # which may have no name
            part.file = UploadFile(self._file, filename=part.file.filename if part.file else "")

    def on_part_end(self) -> None:
        self._current_part.data.decode()  # Starlette would read other bytes as Latin-1
        super().on_part_end()

    def on_end(self) -> None:
        self.is_whole = True


async def read_form(
    content_type: str, body: AsyncGenerator[bytes, None], file: IO[bytes], max_fields: int, max_bytes: int
) -> dict[str, Any]:
    """Return the fields by name: a text, the texts of a name that ends with [], or an UploadFile, written to `file`.

    Failure 400 if the form is invalid, or has a field of more than `max_bytes` bytes.
    """
    form = Form(content_type, body, file, max_fields, max_bytes)
    try:
        parts = (await form.parse()).multi_items()
    except (MultiPartException, ValueError) as exc:
        raise invalid("body", f"is not a form ({exc})") from exc
    if not form.is_whole:
        raise invalid("body", "is not a form: its last boundary is missing; send a whole body")
    found: dict[str, Any] = {}
    for name, value in parts:
        is_listed = name.endswith("[]") and isinstance(value, str)
        if is_listed and isinstance(found.setdefault(name, []), list):
            found[name].append(value)
        elif name in found:
            raise invalid(name[:80], "is in the form twice; send it once")
        else:
            found[name] = value
    return found


async def form_in(body: bytes | bytearray, content_type: str) -> dict[str, Any]:
    """Return the fields of a whole body as `read_form` does, with the bytes of the file."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), PIECE_BYTES):
            yield bytes(memoryview(body)[start : start + PIECE_BYTES])
            await asyncio.sleep(0)

    with SpooledTemporaryFile(max_size=0) as file:  # in memory, without a maximum
        found = await read_form(content_type, pieces(), file, max_fields=64, max_bytes=1024**2)
        return {name: await value.read() if isinstance(value, UploadFile) else value for name, value in found.items()}
