"""Routes of OpenAI's files: /v1/files. A file is on the disk, never in memory as a whole.

client → parts of a body → file of the token's shelf → client, a piece at a time
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, Self, TypeVar
from urllib.parse import parse_qsl

from pydantic import ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse
from starlette.routing import Route

from sie_triton.doors.backend import tenant
from sie_triton.doors.batches.shelf import WITHOUT_TOKEN, Record, Shelf, new_id, to_its_end
from sie_triton.doors.body import CLOSE, check_head, parts, too_slow
from sie_triton.doors.body_codec import MULTIPART, media_type
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, delete, get, post
from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.fields import Body
from sie_triton.doors.forms import PIECE_BYTES, read_form
from sie_triton.doors.openai import FAILURE, OPENAI
from sie_triton.doors.openapi import operation, posted
from sie_triton.doors.schemas import BOOLEAN, INTEGER, STRING, closed, record, several
from sie_triton.settings.secrets import tokens

# Folder of the data directory.
FILES = "files"

# Maximum length of a file's name, and of the purpose.
MAX_NAME = 256

JSONL = "application/jsonl"

Result = TypeVar("Result")

ONE = record(id=STRING, object={"const": "file"}, bytes=INTEGER, created_at=INTEGER, filename=STRING, purpose=STRING)
# Statuses of routes without a body.
STATUSES = ("400", "429")

ID = {"name": "file_id", "in": "path", "required": True, "schema": STRING}


class Page(Body):
    """Parameters in the URL of a list."""

    model_config = ConfigDict(extra="forbid")

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20

    @classmethod
    def of(cls, request: DoorRequest) -> Self:
        try:
            given: dict[str, Any] = dict(parse_qsl(request.query_string, keep_blank_values=True, max_num_fields=16))
        except ValueError as exc:
            raise invalid("URL", "has more than 16 parameters") from exc
        if (limit := given.get("limit", "")).isdecimal() and len(limit) < 10:
            given["limit"] = int(limit)
        return cls.read(given, 0)

    @classmethod
    def parameters(cls) -> list[Mapping[str, Any]]:
        """Return the parameters for /openapi.json."""
        kinds = cls.model_json_schema()["properties"]
        return [{"name": name, "in": "query", "schema": kind.get("anyOf", [kind])[0]} for name, kind in kinds.items()]

    def of_list(self, records: Sequence[Record]) -> Record:
        """Return this page of a list; Failure 404 if `after` is not in it."""
        ids = [each["id"] for each in records]
        if self.after and self.after not in ids:
            raise Failure("no_route", f"after: there is no {self.after[:60]!r} in this list", field="after")
        begin = ids.index(self.after) + 1 if self.after else 0
        data = records[begin : begin + self.limit]
        return {"object": "list", "data": data, "has_more": begin + self.limit < len(ids)}


class FilePage(Page):
    """Parameters in the URL of the list of files."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def routes(door: Door) -> list[Route]:
    def endpoint(handler: Any, document: Any) -> DoorEndpoint:
        return DoorEndpoint(door, handler, dialect=OPENAI, types=[], document=document)

    own = partial(operation, error=FAILURE, more=STATUSES)
    one, many = partial(own, parameters=[ID]), record(object={"const": "list"}, data=several(ONE))
    deleted = record(id=STRING, object={"const": "file"}, deleted=BOOLEAN)
    all_files = own("Files of the token.", answer=many, parameters=FilePage.parameters())
    return [
        post("/v1/files", endpoint(upload, document_of_upload), "upload_file"),
        get("/v1/files", endpoint(list_files, all_files), "list_files"),
        get("/v1/files/{file_id}", endpoint(show, one("A file.", answer=ONE)), "file"),
        delete("/v1/files/{file_id}", endpoint(remove, one("Delete a file.", answer=deleted)), "delete_file"),
        get("/v1/files/{file_id}/content", endpoint(content, one("Its content.", answer={}, types=[JSONL])), "content"),
    ]


def document_of_upload(specs: Sequence[Any]) -> Mapping[str, Any]:
    summary = "Upload the requests of a batch, one JSON object a line."
    schema = closed({"file": STRING | {"contentMediaType": JSONL}, "purpose": {"const": "batch"}}, "file", "purpose")
    return posted(summary, schema, None, ONE, read=[MULTIPART], error=FAILURE)


def shelf_of(request: DoorRequest) -> Shelf:
    """Return the shelf of the request's token; Failure if this door keeps no files."""
    door = request.door
    if not door.backend.is_beside_server:
        raise Failure("no_route", f"{request.url}: a gateway keeps no files; call the door of a server")
    if not door.settings.door_max_file_bytes:
        raise Failure("no_route", f"{request.url}: SIE_DOOR_MAX_FILE_BYTES is 0, so there are no files")
    return shelf(door, tenant.get() or WITHOUT_TOKEN)


def shelf(door: Door, name: str) -> Shelf:
    settings = door.settings
    num_tokens = len(tokens(settings.auth_tokens)) if settings.asks_for_token else 1
    return Shelf(settings.data_dir / FILES / name, settings.door_max_file_bytes // num_tokens, door.limits.batch)


async def on_disk(act: Callable[..., Result], *given: Any) -> Result:
    """Call `act` on a thread; Failure if the disk is full, or fails."""
    with disk_failures():
        return await to_its_end(act, *given)


@contextmanager
def disk_failures() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        message = f"the data directory cannot be used ({exc.strerror or type(exc).__name__}); retry later"
        raise Failure("busy", message, retry_after_s=60) from exc


async def upload(request: DoorRequest) -> Answer:
    shelf, id = shelf_of(request), new_id("file-")
    try:
        with disk_failures(), await on_disk(shelf.create, id) as file:
            name = await _received(request, shelf, file)
        await on_disk(shelf.check_bytes, 0)
        return request.answer(await on_disk(shelf.add_file, id, name, "batch"))
    except BaseException:
        await to_its_end(shelf.path(id).unlink, True)
        raise


async def _received(request: DoorRequest, shelf: Shelf, file: BinaryIO) -> str:
    """Write the file of a form as it arrives, and return its name."""
    kind, limits = request.header("content-type"), request.door.limits
    media_type(kind, [MULTIPART])
    try:
        async with asyncio.timeout(limits.body_timeout_s) as timeout:
            found = await read_form(kind or "", _body(request, shelf, timeout), file, max_fields=2, max_bytes=MAX_NAME)
    except TimeoutError as exc:
        raise too_slow(limits) from exc
    for name, value in found.items():
        if name not in ("file", "purpose") or isinstance(value, UploadFile) is not (name == "file"):
            raise invalid(name[:80] or "body", "is not read here; send a file and its purpose")
    if "file" not in found or len(name := found["file"].filename or "") > MAX_NAME:
        raise invalid("file", f"is missing, or has a name of more than {MAX_NAME} characters")
    if found.get("purpose") != "batch":
        raise invalid("purpose", "must be batch")
    return name


async def _body(request: DoorRequest, shelf: Shelf, timeout: asyncio.Timeout) -> AsyncGenerator[bytes, None]:
    """Yield the parts of the body; Failure if it is too large, or there is no room."""
    limits, max_bytes, num_bytes = request.door.limits, shelf.limits.file_bytes, 0
    too_large = Failure("too_large", f"file: has more than {max_bytes} bytes; split it", field="file", headers=CLOSE)
    check_head(request.headers, max_bytes, too_large)
    assert request.receive is not None
    async for part in parts(request.receive, max_bytes, too_large, timeout, limits.body_bytes_per_s):
        num_bytes += len(part)
        if num_bytes % PIECE_BYTES < len(part):
            await on_disk(shelf.check_bytes, 0)
        yield part


async def show(request: DoorRequest) -> Answer:
    return request.answer(await on_disk(shelf_of(request).read, request.path["file_id"], "file_id", "file-"))


async def remove(request: DoorRequest) -> Answer:
    id = request.path["file_id"]
    await on_disk(shelf_of(request).delete_file, id)
    return request.answer({"id": id, "object": "file", "deleted": True})


async def list_files(request: DoorRequest) -> Answer:
    page, shelf = FilePage.of(request), shelf_of(request)
    files = [each for each in await on_disk(shelf.records, "file-") if page.purpose in (None, each["purpose"])]
    return request.answer(page.of_list(files if page.order == "asc" else files[::-1]))


async def content(request: DoorRequest) -> FileResponse:
    """Return the content of a file, which no browser shows as a page of this server."""
    shelf, id = shelf_of(request), request.path["file_id"]
    await on_disk(shelf.read, id, "file_id", "file-")
    headers = {"X-Content-Type-Options": "nosniff"}
    response = FileResponse(shelf.path(id), media_type=JSONL, filename=f"{id}.jsonl", headers=headers)
    response.body = b""  # what of it is in memory
    return response
