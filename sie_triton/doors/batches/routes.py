"""Routes of OpenAI's batches: /v1/batches."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.routing import Route

from sie_triton.doors.batches.files import STATUSES, Page, on_disk, shelf_of
from sie_triton.doors.batches.shelf import Record, Shelf, new_id, now
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, get, post
from sie_triton.doors.failures import invalid
from sie_triton.doors.fields import Body
from sie_triton.doors.openai import FAILURE, OPENAI
from sie_triton.doors.openapi import operation, posted
from sie_triton.doors.openapi_dialects import fields_of
from sie_triton.doors.schemas import INTEGER, STRING, closed, record, several

# Routes whose requests a batch may have.
Endpoint = Literal[
    "/v1/embeddings",
    "/v1/embed",
    "/v2/embed",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/score",
    "/classify",
    "/pooling",
]

# Steps of a batch whose time is a field.
STEPS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")

# Keys of a batch that its owner does not see; in `place`, the position after the last request that has ended.
PRIVATE = ("output_id", "error_id", "place")

Words = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class NewBatch(Body):
    """Body of a request for a batch."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: Annotated[str, Field(max_length=100)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[Words, Field(max_length=16)] | None = None


COUNTS = record(total=INTEGER, completed=INTEGER, failed=INTEGER)
ONE = record(id=STRING, object={"const": "batch"}, status=STRING, endpoint=STRING, request_counts=COUNTS)
ID = {"name": "batch_id", "in": "path", "required": True, "schema": STRING}


def routes(door: Door) -> list[Route]:
    def endpoint(handler: Any, document: Any, types: Sequence[str] = ()) -> DoorEndpoint:
        return DoorEndpoint(door, handler, dialect=OPENAI, types=types, document=document)

    own = partial(operation, error=FAILURE, more=STATUSES)
    one = partial(own, answer=ONE, parameters=[ID])
    many = record(object={"const": "list"}, data=several(ONE))
    all_batches = own("Batches of the token.", answer=many, parameters=Page.parameters())
    return [
        post("/v1/batches", endpoint(create, document, [JSON]), "create_batch"),
        get("/v1/batches", endpoint(list_batches, all_batches), "list_batches"),
        get("/v1/batches/{batch_id}", endpoint(show, one("A batch.")), "batch"),
        post("/v1/batches/{batch_id}/cancel", endpoint(cancel, one("End a batch early.")), "cancel_batch"),
    ]


def document(specs: Sequence[Any]) -> Mapping[str, Any]:
    summary = "Run the requests of an uploaded file, as work that gives way to other requests."
    given, required = fields_of(NewBatch, 0)
    return posted(summary, closed(given, *required), None, ONE, error=FAILURE)


async def create(request: DoorRequest) -> Answer:
    wanted, shelf = NewBatch.of(request), shelf_of(request)
    file = await on_disk(shelf.read, wanted.input_file_id, "input_file_id", "file-")
    if file["purpose"] != "batch":
        raise invalid("input_file_id", f"{file['id']} has the purpose {file['purpose']}; upload one for batch")
    batch = _new(wanted, shelf)
    await on_disk(shelf.add_batch, batch)
    request.door.batch_event.set()
    return request.answer(await on_disk(shown, shelf, batch))


def _new(wanted: NewBatch, shelf: Shelf) -> Record:
    """Return a batch that has not begun."""
    created_at = now()
    return {
        "id": new_id("batch_"),
        "object": "batch",
        "endpoint": wanted.endpoint,
        "errors": None,
        "input_file_id": wanted.input_file_id,
        "completion_window": wanted.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": created_at,
        "expires_at": created_at + shelf.limits.completion_s,
        **dict.fromkeys(f"{name}_at" for name in STEPS),
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": wanted.metadata,
        "output_id": new_id("file-"),
        "error_id": new_id("file-"),
        "place": {"input": 0, "line": 0, "output": 0, "error": 0},
    }


def shown(shelf: Shelf, batch: Record) -> Record:
    """Return a batch as its owner sees it."""
    public = {name: value for name, value in batch.items() if name not in PRIVATE}
    cancelling = shelf.path(f"{batch['id']}.cancel")
    if batch["status"] in ("validating", "in_progress"):
        with suppress(FileNotFoundError):
            public |= {"cancelling_at": int(cancelling.stat().st_mtime), "status": "cancelling"}
    return public


def _read(shelf: Shelf, id: str) -> Record:
    return shown(shelf, shelf.read(id, "batch_id", "batch_"))


async def show(request: DoorRequest) -> Answer:
    shelf = shelf_of(request)
    return request.answer(await on_disk(_read, shelf, request.path["batch_id"]))


async def list_batches(request: DoorRequest) -> Answer:
    page, shelf = Page.of(request), shelf_of(request)
    batches = await on_disk(lambda: [shown(shelf, batch) for batch in reversed(shelf.records("batch_"))])
    return request.answer(page.of_list(batches))


async def cancel(request: DoorRequest) -> Answer:
    """Record the wish that a batch end, which the process that runs it reads."""
    shelf, id = shelf_of(request), request.path["batch_id"]
    batch = await on_disk(shelf.read, id, "batch_id", "batch_")
    if batch["status"] not in ("validating", "in_progress"):
        raise invalid("batch_id", f"{id} is {batch['status']}; only a batch that runs can be cancelled")
    await on_disk(shelf.path(f"{id}.cancel").touch)
    request.door.batch_event.set()
    return request.answer(await on_disk(_read, shelf, id))
