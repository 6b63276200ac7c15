"""Documents of the routes of other HTTP dialects in /openapi.json."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.fields import (
    EMBEDDING_TYPES,
    INPUT_TYPES,
    LARGEST_COUNT,
    LONGEST_FIELD,
    MAX_RANK_FIELDS,
    OURS,
    TASKS,
)
from sie_triton.doors.model_choice import DENSE, SCORES, SPARSE, able
from sie_triton.doors.openapi import TIMEOUT, Document, failures, operation, posted
from sie_triton.doors.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBERS,
    STRING,
    Schema,
    any_of,
    closed,
    fields,
    models_of,
    optional,
    parameters,
    several,
)

QUERY, TEXTS = "What climbs?", ["Roses climb.", "Ships sail."]
VERBS = {DENSE: "encode", SPARSE: "encode", SCORES: "score"}
NOT_READ = {"description": "ignored"}
COUNT = INTEGER | {"minimum": 1, "maximum": LARGEST_COUNT}

OPENAI_FAILURE = {"message": STRING, "type": STRING, "param": optional(STRING), "code": STRING}
OPENAI_ERROR = fields({"error": fields(OPENAI_FAILURE, "message")}, "error")
RERANK_ERROR = fields(dict.fromkeys(("message", "detail", "code"), STRING), "message")
TEI_ERROR = fields(dict.fromkeys(("error", "error_type"), STRING), "error", "error_type")
TEI_STATUSES = {"400": "422", "404": "424", "502": "424"}

USAGE = fields(dict.fromkeys(("prompt_tokens", "total_tokens"), INTEGER), "prompt_tokens", "total_tokens")
VECTOR = any_of(NUMBERS, STRING | {"contentEncoding": "base64", "description": "little-endian float32"})
EMBEDDING = {"object": {"const": "embedding"}, "index": INTEGER, "embedding": VECTOR}
EMBEDDINGS = {
    "object": {"const": "list"},
    "data": several(fields(EMBEDDING, *EMBEDDING)),
    "model": STRING,
    "usage": USAGE,
}
RERANKED = {
    "id": STRING,
    "model": STRING,
    "results": several(fields({"index": INTEGER, "relevance_score": NUMBER, "document": {}}, "index")),
    "meta": {"type": "object"},
    "usage": USAGE,
}
EMBEDDED = {
    "id": STRING,
    "embeddings": {"description": "vectors by their type; in the first version without embedding_types, vectors"},
    "texts": several(STRING),
    "meta": {"type": "object"},
    "response_type": {"enum": ["embeddings_floats", "embeddings_by_type"]},
}
RANKS = several(fields({"index": INTEGER, "score": NUMBER, "text": STRING}, "index", "score"))
SPARSE_VECTORS = several(several(fields({"index": INTEGER, "value": NUMBER}, "index", "value")))

RANK_FIELDS = several(STRING | {"maxLength": LONGEST_FIELD}, minItems=1, maxItems=MAX_RANK_FIELDS) | {
    "uniqueItems": True,
    "description": "fields that are read from documents that are objects, one line each; default: text",
}
ONCE = "a document is read once, up to the model's maximum length"


def embeddings(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    models = able(specs, DENSE)
    given = {
        "model": _model_of(models),
        "input": _texts(max_items) | {"description": "token ids are refused"},
        "encoding_format": optional({"enum": ["float", "base64"]}),
        "user": NOT_READ,
        "task": optional({"enum": list(TASKS), "description": "is_query, as Jina's clients send it"}),
    }
    body = closed(given | _taken(models, DENSE, "profile"), "model", "input")
    example = {"model": models[0].model, "input": TEXTS} if models else None
    return _posted("Vectors, in OpenAI's format.", body, example, fields(EMBEDDINGS, *EMBEDDINGS), OPENAI_ERROR)


def embed(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    models = able(specs, DENSE)
    texts = several(STRING, minItems=1, maxItems=max_items)
    taken = _taken(models, DENSE, "profile")
    contents = several({"type": "object"}, minItems=1, maxItems=max_items)
    types = several({"enum": list(EMBEDDING_TYPES)}, minItems=1)
    given = {
        "model": _model_of(models),
        "texts": optional(texts),
        "images": optional(texts | {"description": "data: URLs"}),
        "inputs": optional(contents | {"description": "objects with content, of a text and an image at most"}),
        "input_type": optional({"enum": list(INPUT_TYPES)}),
        "embedding_types": optional(types),
        "output_dimension": taken.get("dimensions", optional(COUNT)),
        "truncate": {"enum": ["END", "NONE", "START", None]},
        "max_tokens": {"type": "null", "description": ONCE},
        "priority": NOT_READ,
    }
    body = closed(given | taken, "model")
    example = {"model": models[0].model, "texts": TEXTS, "input_type": "search_document"} if models else None
    summary = "Vectors, in Cohere's format; give one of texts, images and inputs."
    return _posted(summary, body, example, fields(EMBEDDED, *EMBEDDED), RERANK_ERROR)


def rerank(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    models = able(specs, SCORES)
    given = {
        "model": _model_of(models),
        "query": STRING,
        "documents": several(any_of(STRING, {"type": "object"}), minItems=1, maxItems=max_items)
        | {"description": "strings, or objects with at least one of rank_fields"},
        "top_n": optional(COUNT),
        "return_documents": optional(BOOLEAN),
        "rank_fields": optional(RANK_FIELDS),
        "max_chunks_per_doc": {"enum": [1, None], "description": ONCE},
        "max_tokens_per_doc": {"type": "null", "description": ONCE},
        "relevant_spans": optional(fields({"mode": {"const": "disabled"}}, "mode")),
        "priority": NOT_READ,
    }
    body = closed(given | _taken(models, SCORES, "profile"), "model", "query", "documents")
    example = {"model": models[0].model, "query": QUERY, "documents": TEXTS} if models else None
    summary = "Documents by relevance, in Cohere's and Jina's format; relevance_score is the model's own score."
    return _posted(summary, body, example, fields(RERANKED, *RERANKED), RERANK_ERROR)


def tei_documents(max_items: int, named: Sequence[str]) -> Mapping[str, Document]:
    """Return the documents of the routes by path; `named` are the models in SIE_DOOR_TEI_MODEL."""
    texts = partial(_embed_body, max_items)
    ranks = partial(_rank_body, max_items)
    bodies: Mapping[str, tuple[str, Callable[[Schema], Schema], Any, Schema]] = {
        "/embed": (DENSE, texts, {"inputs": TEXTS}, several(NUMBERS)),
        "/embed_sparse": (SPARSE, texts, {"inputs": TEXTS}, SPARSE_VECTORS),
        "/rerank": (SCORES, ranks, {"query": QUERY, "texts": TEXTS}, RANKS),
    }
    found: dict[str, Document] = {path: partial(_of_one, named, *each) for path, each in bodies.items()}
    summary = "The model, in text-embeddings-inference's format."
    info = operation(summary, answer={"type": "object"}, error=TEI_ERROR)
    return found | {"/info": lambda specs: _in_tei_statuses(info(specs))}


def _embed_body(max_items: int, taken: Schema) -> Schema:
    name = optional(STRING | {"description": "query, document, or another prompt in the model's own files"})
    return closed({"inputs": _texts(max_items), **_truncation(), **taken, "prompt_name": name}, "inputs")


def _rank_body(max_items: int, taken: Schema) -> Schema:
    given = {
        "query": STRING,
        "texts": several(STRING, minItems=1, maxItems=max_items),
        "return_text": optional(BOOLEAN),
        "raw_scores": {"enum": [False, None], "description": "the model's own scores"},
        "top_n": optional(COUNT),
        **_truncation(),
    }
    return closed(given | taken, "query", "texts")


def _truncation() -> Schema:
    cut = "false: a text beyond the model's maximum length is an error; else it is truncated"
    return {
        "truncate": optional(BOOLEAN | {"description": cut}),
        "truncation_direction": {"enum": ["Left", "Right", "left", "right", None]},
    }


def _of_one(
    named: Sequence[str],
    what: str,
    body: Callable[[Schema], Schema],
    example: Any,
    answer: Schema,
    specs: Sequence[ModelSpec],
) -> Schema:
    """Return the operation of a route that serves one model, with an example only if that model is unambiguous."""
    models = _meant(able(specs, what), named)
    summary = f"{what[0].upper()}{what[1:]} of SIE_DOOR_TEI_MODEL, in text-embeddings-inference's format."
    made = _posted(
        summary, body(_taken(models, what, "is_query")), example if len(models) == 1 else None, answer, TEI_ERROR
    )
    return _in_tei_statuses(made)


def _meant(models: Sequence[ModelSpec], named: Sequence[str]) -> list[ModelSpec]:
    """Return the first of `named` that is among `models`; without names, all models."""
    by_name = {spec.model: spec for spec in models}
    return [by_name[name] for name in named if name in by_name][:1] if named else list(models)


def _in_tei_statuses(made: Mapping[str, Any]) -> Schema:
    responses = {TEI_STATUSES.get(status, status): told for status, told in made["responses"].items()}
    return {**made, "responses": responses | failures("429", schema=TEI_ERROR)}


def _taken(models: Sequence[ModelSpec], what: str, other: str) -> Schema:
    """Return the request parameters that are additional fields of a body, without OURS and `other`."""
    found = parameters(models_of(models), VERBS[what])
    return {name: schema for name, schema in found.items() if name not in (*OURS, other)}


def _texts(max_items: int) -> Schema:
    return any_of(STRING, several(STRING, minItems=1, maxItems=max_items))


def _model_of(models: Sequence[ModelSpec]) -> Schema:
    """Return the schema of a model name with an optional profile."""
    names = [name for spec in models for name in (spec.model, *(f"{spec.model}:{p.name}" for p in spec.profiles))]
    return STRING | ({"enum": names} if names else {}) | {"description": "org/name, or org/name:profile"}


def _posted(summary: str, body: Schema, example: Any, answer: Schema, error: Schema) -> Schema:
    return posted(summary, body, example, answer, parameters=[TIMEOUT], error=error)
