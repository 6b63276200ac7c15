"""Routes of Cohere's and Jina's HTTP APIs: POST /v1/rerank and /v2/rerank.

`relevance_score` is the model's own score: from 0 to 1 for a cross-encoder whose files name a sigmoid or no activation,
a logit if they name Identity (cross-encoder/ms-marco-*), the sum of MaxSim for a late-interaction model.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from starlette.routing import Route

from sie_triton.contract.tensors import TEXT
from sie_triton.doors import openapi_dialects
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import LONGEST_FIELD, MAX_RANK_FIELDS, BodyFields, check_query
from sie_triton.doors.json_dialects import answered, fields_of, in_order, items_of
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.response_bodies import sie_timing
from sie_triton.errors import InputError

# Maximum number of documents in one of Cohere's search units.
DOCUMENTS_PER_UNIT = 100

ONCE = "is not supported, because a document is read once, up to the model's maximum length; omit it"


def routes(door: Door) -> list[Route]:
    document = partial(openapi_dialects.rerank, door.settings.door_max_items)
    return [
        Route(
            f"/v{version}/rerank",
            DoorEndpoint(
                door,
                partial(rerank, version),
                dialect=COHERE,
                types=[JSON],
                document=document,
            ),
            methods=["POST"],
            name=f"rerank_v{version}",
        )
        for version in ("1", "2")
    ]


async def rerank(version: str, request: DoorRequest) -> Answer:
    door, wanted = request.door, read_request(fields_of(request))
    check_query(wanted.query, wanted.texts, "query", door.settings.door_max_body_bytes)
    items, query = items_of(wanted.texts), {TEXT.name: wanted.query}
    async with Explaining(door, wanted.model, "score", items):
        result = await door.backend.score(wanted.model, query, items, request.seconds, wanted.options)
    body = answer(version, wanted, in_order(result), result["token_count"])
    return answered(request, body, sie_timing(result["timing"]))


class Rerank(NamedTuple):
    """Content of a rerank request; `texts` are read from `documents`, and `options` are request parameters."""

    model: str
    query: str
    documents: list[Any]
    texts: list[str]
    top_n: int | None
    returns_documents: bool
    options: dict[str, Any]


def read_request(fields: BodyFields) -> Rerank:
    """Read a rerank request; InputError names the invalid field."""
    model, query = fields.model(), fields.text("query")
    documents = fields.items("documents", "a list of strings or of objects with text")
    texts = _texts(documents, _rank_fields(fields.given("rank_fields")))
    top_n, returns_documents = fields.count("top_n"), fields.boolean("return_documents", False)
    _refuse_unsupported(fields)
    fields.given("priority")
    return Rerank(model, query, documents, texts, top_n, returns_documents, fields.options())


def _refuse_unsupported(fields: BodyFields) -> None:
    if fields.count("max_chunks_per_doc") not in (None, 1):
        raise InputError.at("max_chunks_per_doc", f"{ONCE}, or give 1")
    if fields.count("max_tokens_per_doc") is not None:
        raise InputError.at("max_tokens_per_doc", ONCE)
    spans = fields.given("relevant_spans")
    if spans is not None and not (isinstance(spans, Mapping) and spans.get("mode") == "disabled"):
        raise InputError.at("relevant_spans", "are not supported; omit the field")


def _rank_fields(given: Any) -> list[str]:
    if given is None:
        return ["text"]
    if not isinstance(given, list) or not 0 < len(given) <= MAX_RANK_FIELDS:
        raise InputError.at("rank_fields", f"must be a list of 1 to {MAX_RANK_FIELDS} names of document fields")
    for i, name in enumerate(given):
        if not isinstance(name, str) or len(name) > LONGEST_FIELD:
            raise InputError.at(f"rank_fields[{i}]", f"must be a name of at most {LONGEST_FIELD} characters")
    if len(set(given)) < len(given):
        raise InputError.at("rank_fields", "a name occurs twice; give each name once")
    return given


def _texts(documents: Sequence[Any], rank_fields: Sequence[str]) -> list[str]:
    return [_text(document, f"documents[{i}]", rank_fields) for i, document in enumerate(documents)]


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
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: wanted.top_n]
    results = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    if wanted.returns_documents:
        results = [each | {"document": _returned(wanted.documents[int(each["index"])])} for each in results]
    units = -(-len(scores) // DOCUMENTS_PER_UNIT)
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": units}}
    return {
        "id": str(uuid4()),
        "object": "list",
        "model": wanted.model,
        "results": results,
        "meta": meta | {"tokens": {"input_tokens": num_tokens}},
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def _returned(document: Any) -> Any:
    return {"text": document} if isinstance(document, str) else document


def error(failure: Failure) -> dict[str, Any]:
    """Return the body of a failure: Cohere's clients read `message`, Jina's `detail`."""
    return {"message": failure.message, "detail": failure.message, "code": failure.row.code, **failure.more}


COHERE = Dialect(lambda row: row.cohere, error)
