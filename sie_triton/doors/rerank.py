"""Routes of Cohere's and Jina's HTTP APIs: POST /v1/rerank and /v2/rerank.

`relevance_score` is the model's own score: from 0 to 1 for a cross-encoder whose files name a sigmoid or no activation,
a logit if they name Identity (cross-encoder/ms-marco-*), the sum of MaxSim for a late-interaction model.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field, SkipValidation, WithJsonSchema
from starlette.routing import Route

from sie_triton.contract.tensors import TEXT
from sie_triton.doors.endpoint import Answer, Door, DoorRequest, post
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import (
    INTEGRAL,
    LARGEST_COUNT,
    Ignored,
    Items,
    ModelName,
    Overflowing,
    allowing,
    check_query,
)
from sie_triton.doors.json_dialects import answered, entries_of, in_order, items_of
from sie_triton.doors.model_choice import SCORES, Explaining
from sie_triton.doors.openapi_dialects import QUERY, TEXTS, USAGE, Operation
from sie_triton.doors.response_bodies import sie_timing
from sie_triton.doors.schemas import INTEGER, NUMBER, STRING, fields, record, several
from sie_triton.errors import InputError

# Maximum number of rank_fields, and of characters in each: every document is searched once for each of them.
MAX_RANK_FIELDS = 16

ONCE = "a document is read once, up to the model's maximum length"


RankFields = Annotated[
    list[Annotated[str, Field(max_length=100)]],
    Field(min_length=1, max_length=MAX_RANK_FIELDS, fail_fast=True, json_schema_extra={"uniqueItems": True}),
    allowing(lambda names: len(set(names)) == len(names), "must not contain a name twice"),
]
Spans = Annotated[
    Any,
    allowing(
        lambda spans: isinstance(spans, Mapping) and spans.get("mode") == "disabled", "are not supported; omit it"
    ),
    WithJsonSchema(fields({"mode": {"const": "disabled"}}, "mode")),
]


class Rerank(Overflowing):
    """Body of a rerank request; `top_n` 0 is vLLM's word for all documents."""

    model: ModelName
    query: str
    documents: Items[SkipValidation[str | dict[str, Any]]] = Field(
        description="strings, or objects with at least one of rank_fields"
    )
    top_n: Annotated[int, Field(ge=0, le=LARGEST_COUNT), INTEGRAL] | None = None
    return_documents: bool | None = None
    rank_fields: RankFields | None = Field(
        None, description="fields that are read from documents that are objects, one line each; default: text"
    )
    max_chunks_per_doc: Annotated[int, Field(ge=1, le=1), INTEGRAL] | None = Field(None, description=ONCE)
    max_tokens_per_doc: None = Field(None, description=ONCE)
    relevant_spans: Spans | None = None
    priority: Ignored = None

    def texts(self) -> list[str]:
        """Return the texts of the documents; InputError names the document that has none."""
        names = self.rank_fields or ["text"]
        return [_text(document, f"documents[{i}]", names) for i, document in enumerate(self.documents)]


FAILURE = fields(dict.fromkeys(("message", "detail", "code"), STRING), "message")
RESULT = fields({"index": INTEGER, "relevance_score": NUMBER, "document": {}}, "index")
OPERATION = Operation(
    Rerank,
    "Documents by relevance, in Cohere's and Jina's format; relevance_score is the model's own score.",
    {"query": QUERY, "documents": TEXTS},
    record(id=STRING, model=STRING, results=several(RESULT), meta={"type": "object"}, usage=USAGE),
    FAILURE,
    SCORES,
)


def routes(door: Door) -> list[Route]:
    return cohere_routes(door, "rerank", rerank, OPERATION)


def cohere_routes(
    door: Door, name: str, handler: Callable[[str, DoorRequest], Awaitable[Answer]], operation: Operation
) -> list[Route]:
    """Return the routes of both versions of Cohere's API; `handler` takes the version."""
    endpoints = {version: operation.endpoint(door, partial(handler, version), COHERE) for version in ("1", "2")}
    return [post(f"/v{version}/{name}", each, f"{name}_v{version}") for version, each in endpoints.items()]


async def rerank(version: str, request: DoorRequest) -> Answer:
    door, wanted = request.door, Rerank.of(request)
    texts, parameters = wanted.texts(), wanted.options()
    check_query(wanted.query, texts, "query", door.settings.door_max_body_bytes)
    items, query = items_of(texts), {TEXT.name: wanted.query}
    async with Explaining(door, wanted.model, "score", items):
        result = await door.backend.score(wanted.model, query, items, request.seconds, parameters)
    wanted.check_lengths(entries_of(result), "documents")
    body = answer(version, wanted, in_order(result), result["token_count"])
    return answered(request, body, sie_timing(result["timing"]))


def _text(document: Any, name: str, rank_fields: Sequence[str]) -> str:
    """Return a line for each of `rank_fields` in the document. No field occurs twice, so the body bounds the length.

    InputError if the document has none of the fields, or one that is not a string.
    """
    if isinstance(document, str):
        return document
    if not isinstance(document, Mapping):
        raise InputError.at(name, f"must be a string or an object with {', '.join(rank_fields)}")
    values = [document[field] for field in rank_fields if document.get(field) is not None]
    if not values or not all(isinstance(value, str) for value in values):
        raise InputError.at(name, f"must have {' or '.join(rank_fields)} as a string")
    return "\n".join(values)


def answer(version: str, wanted: Rerank, scores: Sequence[float], num_tokens: int) -> dict[str, Any]:
    """Return the response body, for clients of both. `scores` are in the order of the documents."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: wanted.top_n or None]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    if wanted.return_documents:
        documents = [{"text": each} if isinstance(each, str) else each for each in wanted.documents]
        results = [each | {"document": documents[each["index"]]} for each in results]
    units = -(-len(scores) // 100)  # of up to 100 documents
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": units}}
    return {
        "id": str(uuid4()),
        "object": "list",
        "model": wanted.model,
        "results": results,
        "meta": meta | {"tokens": {"input_tokens": num_tokens}},
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def error(failure: Failure) -> dict[str, Any]:
    """Return the body of a failure: Cohere's clients read `message`, Jina's `detail`."""
    return {"message": failure.message, "detail": failure.message, "code": failure.row.code, **failure.more}


COHERE = Dialect(lambda row: row.cohere, error)
