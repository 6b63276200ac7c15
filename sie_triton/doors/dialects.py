"""What /openapi.json says of the routes of other people's HTTP."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sie_triton.doors.capable import DENSE, SCORES, SPARSE, able
from sie_triton.doors.openapi import Document, operation, posted
from sie_triton.doors.wire import JSON
from sie_triton.spec import ModelSpec

STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
STRINGS, NUMBERS = ({"type": "array", "items": each} for each in (STRING, NUMBER))

QUERY, TEXTS = "What climbs?", ["Roses climb.", "Ships sail."]
TRUNCATE = {"truncate": BOOLEAN | {"description": "true: a text longer than the model reads is always cut"}}
FURTHER = " Further fields are request parameters of the model."


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": dict(properties)}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


def _tokens(*names: str) -> dict[str, Any]:
    return _object(dict.fromkeys(names, INTEGER), *names)


OPENAI_ERROR = _object(
    {"error": _object(dict.fromkeys(("message", "type", "param", "code"), STRING), "message")}, "error"
)
RERANK_ERROR = _object(dict.fromkeys(("message", "detail", "code"), STRING), "message")
TEI_STATUSES = {"400": "422", "404": "424", "502": "424"}
TEI_ERROR = _object(dict.fromkeys(("error", "error_type"), STRING), "error", "error_type")

VECTOR = {"oneOf": [NUMBERS, STRING | {"contentEncoding": "base64", "description": "little-endian float32"}]}
EMBEDDINGS = _object(
    {
        "object": {"const": "list"},
        "data": _list(_object({"object": {"const": "embedding"}, "index": INTEGER, "embedding": VECTOR})),
        "model": STRING,
        "usage": _tokens("prompt_tokens", "total_tokens"),
    },
    "object",
    "data",
    "model",
    "usage",
)
EMBEDDINGS_BODY = _object(
    {
        "model": STRING | {"description": "org/name, or org/name:profile"},
        "input": {"oneOf": [STRING, STRINGS], "description": "token ids are refused"},
        "dimensions": INTEGER | {"minimum": 1},
        "encoding_format": {"enum": ["float", "base64"]},
        "user": STRING | {"description": "not read"},
    },
    "model",
    "input",
)
RERANKED = _object(
    {
        "id": STRING,
        "model": STRING,
        "results": _list(_object({"index": INTEGER, "relevance_score": NUMBER, "document": {}}, "index")),
        "meta": {"type": "object"},
        "usage": _tokens("prompt_tokens", "total_tokens"),
    },
    "results",
)
RERANK_BODY = _object(
    {
        "model": STRING | {"description": "org/name, or org/name:profile"},
        "query": STRING,
        "documents": _list({"oneOf": [STRING, {"type": "object"}]}) | {"description": "strings, or objects with text"},
        "top_n": INTEGER | {"minimum": 1},
        "return_documents": BOOLEAN,
        "rank_fields": STRINGS | {"description": "what is read of documents that are objects, a line each"},
    },
    "model",
    "query",
    "documents",
)
EMBED_BODY = _object(
    {
        "inputs": {"oneOf": [STRING, STRINGS]},
        "normalize": BOOLEAN,
        "dimensions": INTEGER | {"minimum": 1},
        "prompt_name": {"enum": ["query", "document", "passage", "corpus"]},
        **TRUNCATE,
    },
    "inputs",
)
RANK_BODY = _object({"query": STRING, "texts": STRINGS, "return_text": BOOLEAN, **TRUNCATE}, "query", "texts")


def embeddings(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    example = {"model": _first(specs, DENSE), "input": TEXTS}
    return _posted("Vectors, as OpenAI has them." + FURTHER, EMBEDDINGS_BODY, example, EMBEDDINGS, OPENAI_ERROR)


def rerank(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    example = {"model": _first(specs, SCORES), "query": QUERY, "documents": TEXTS}
    return _posted(
        "Documents by relevance, as Cohere and Jina have them; relevance_score is the model's own score." + FURTHER,
        RERANK_BODY,
        example,
        RERANKED,
        RERANK_ERROR,
    )


def tei(what: str, body: Mapping[str, Any], example: Mapping[str, Any], answer: Mapping[str, Any]) -> Document:
    summary = f"As text-embeddings-inference has it: {what} of SIE_DOOR_TEI_MODEL."
    return partial(_of_one, what, summary, body, example, answer)


def _of_one(
    what: str, summary: str, body: Any, example: Any, answer: Any, specs: Sequence[ModelSpec]
) -> dict[str, Any]:
    """With the example where no setting is needed: only one model can."""
    made = _posted(summary, body, example if len(able(specs, what)) == 1 else None, answer, TEI_ERROR)
    responses = {TEI_STATUSES.get(status, status): told for status, told in made["responses"].items()}
    return {**made, "responses": responses}


def _first(specs: Sequence[ModelSpec], what: str) -> str | None:
    return next((spec.model for spec in able(specs, what)), None)


def _posted(summary: str, body: Any, example: Any, answer: Any, error: Any) -> dict[str, Any]:
    """`example` is none where it has no model."""
    works = example is not None and example.get("model", "") is not None
    made = posted(summary, body, example if works else None, answer)
    content = {JSON: {"schema": error}}
    told = made["responses"] | {"429": {"description": "the server is full: Retry-After"}}
    failures = {status: each | {"content": content} for status, each in told.items() if status != "200"}
    return {**made, "responses": told | failures}


RANKS = _list(_object({"index": INTEGER, "score": NUMBER, "text": STRING}, "index", "score"))
SPARSE_VECTORS = _list(_list(_object({"index": INTEGER, "value": NUMBER}, "index", "value")))
OF_TEI: Mapping[str, Document] = {
    "/embed": tei(DENSE, EMBED_BODY, {"inputs": TEXTS}, _list(NUMBERS)),
    "/embed_sparse": tei(SPARSE, EMBED_BODY, {"inputs": TEXTS}, SPARSE_VECTORS),
    "/rerank": tei(SCORES, RANK_BODY, {"query": QUERY, "texts": TEXTS}, RANKS),
    "/info": operation("As text-embeddings-inference has it: the model"),
}
