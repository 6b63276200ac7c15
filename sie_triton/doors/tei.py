"""Routes of Hugging Face's text-embeddings-inference, which serves a single model, so that requests name none."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from starlette.routing import Route

from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.contract.parameters import shown
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TEXT
from sie_triton.doors import openapi_dialects, rerank
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import PROMPT_NAMES, BodyFields, check_query
from sie_triton.doors.json_dialects import answered, check_lengths, cut_by, entries_of, fields_of, in_order, items_of
from sie_triton.doors.model_choice import DENSE, SCORES, SPARSE, Capable
from sie_triton.doors.response_bodies import sie_timing, timing_of
from sie_triton.errors import InputError
from sie_triton.settings import words

TOKENS_HEADER = "X-Compute-Tokens"

# The API's types of error by status; all others are VALIDATION.
TYPES = {424: "Backend", 429: "Overloaded", 503: "Unhealthy", 504: "Unhealthy"}
VALIDATION = "Validation"

DIRECTION, DIRECTIONS = "truncation_direction", ("Left", "Right", "left", "right")

# How a client allows truncation, in the words of errors.
OMIT = "omit truncate to cut it"


def routes(door: Door) -> list[Route]:
    tei, settings = Tei(Capable(door)), door.settings
    documents = openapi_dialects.tei_documents(settings.door_max_items, words(settings.door_tei_model))
    return [
        Route(
            path,
            DoorEndpoint(door, handler, dialect=TEI, types=[JSON], document=documents.get(path)),
            methods=[method],
            name=f"tei_{path[1:]}",
        )
        for method, path, handler in (
            ("POST", "/", tei.embed),
            ("POST", "/embed", tei.embed),
            ("POST", "/embed_sparse", tei.embed_sparse),
            ("POST", "/rerank", tei.rerank),
            ("GET", "/info", tei.info),
        )
    ]


class Tei:
    """Handlers of the routes."""

    def __init__(self, capable: Capable) -> None:
        self._capable = capable

    async def embed(self, request: DoorRequest) -> Answer:
        results = await self._encoded(request, "dense", DENSE)
        return _embedded(request, [result["dense"] for result in results], results)

    async def embed_sparse(self, request: DoorRequest) -> Answer:
        results = await self._encoded(request, "sparse", SPARSE)
        return _embedded(request, sparse_answer(results), results)

    async def rerank(self, request: DoorRequest) -> Answer:
        """Answer TEI's clients, and those that send Cohere's or Jina's body to this path."""
        if isinstance(request.content, dict) and "documents" in request.content:
            request.dialect = rerank.COHERE
            return await rerank.rerank("1", request)
        wanted = read_rerank_request(fields_of(request))
        check_query(wanted.query, wanted.texts, "query", request.door.settings.door_max_body_bytes)
        items, query = items_of(wanted.texts), {TEXT.name: wanted.query}
        spec = await self._capable.spec(SCORES)
        options = cut_by(spec, wanted.options, DIRECTION)
        result = await request.door.backend.score(spec.model, query, items, request.seconds, options)
        if wanted.refuses_long:
            check_lengths(entries_of(result), "texts", f"{OMIT} (with the query)")
        headers = {TOKENS_HEADER: str(result["token_count"])}
        return answered(request, rerank_answer(wanted, in_order(result)), sie_timing(result["timing"]), headers)

    async def info(self, request: DoorRequest) -> Answer:
        what, spec = await self._capable.any()
        return request.answer(described(what, spec, request.door.settings.door_max_items))

    async def _encoded(self, request: DoorRequest, output: str, what: str) -> list[Any]:
        wanted, spec = read_embed_request(fields_of(request)), await self._capable.spec(what)
        parameters = cut_by(spec, wanted.options, DIRECTION) | {"output_types": output}
        results = await request.door.backend.encode(spec.model, items_of(wanted.texts), request.seconds, parameters)
        if wanted.refuses_long:
            check_lengths(results, "inputs", OMIT)
        return results


def _embedded(request: DoorRequest, answer: Any, results: Sequence[Any]) -> Answer:
    num_tokens = sum(result["token_count"] for result in results)
    return answered(request, answer, timing_of(results), {TOKENS_HEADER: str(num_tokens)})


class Embed(NamedTuple):
    """Content of an embed request. `refuses_long`: a text beyond the model's maximum length is an error."""

    texts: list[str]
    refuses_long: bool
    options: dict[str, Any]


class TeiRerank(NamedTuple):
    """Content of a rerank request; `refuses_long` as for embed, `top_n` the number of results, None: all."""

    query: str
    texts: list[str]
    refuses_long: bool
    returns_text: bool
    top_n: int | None
    options: dict[str, Any]


def read_embed_request(fields: BodyFields) -> Embed:
    """Read a request to /embed or /embed_sparse; InputError names the invalid field."""
    refuses_long, texts = not fields.boolean("truncate", True), fields.texts("inputs")
    options = fields.options(**_side(fields), **_role(fields.given("prompt_name")))
    return Embed(texts, refuses_long, options)


def read_rerank_request(fields: BodyFields) -> TeiRerank:
    """Read a rerank request; InputError names the invalid field."""
    refuses_long = not fields.boolean("truncate", True)
    if fields.boolean("raw_scores", False):
        raise InputError.at("raw_scores", "is not supported, because a model's files define its scores; omit it")
    query, texts = fields.text("query"), fields.several("texts")
    returns_text, top_n = fields.boolean("return_text", False), fields.count("top_n")
    return TeiRerank(query, texts, refuses_long, returns_text, top_n, fields.options(**_side(fields)))


def _side(fields: BodyFields) -> dict[str, Any]:
    direction = fields.choice(DIRECTION, *DIRECTIONS)
    return {} if direction is None else {TRUNCATION_SIDE.name: direction.lower()}


def _role(prompt_name: Any) -> dict[str, Any]:
    """Return the request parameters of a prompt's name: a role, or a prompt of the model's own."""
    if prompt_name is None:
        return {}
    if not isinstance(prompt_name, str):
        raise InputError.at("prompt_name", f"must be a string; got {shown(prompt_name)}")
    is_query = PROMPT_NAMES.get(prompt_name)
    return {"prompt_name": prompt_name} if is_query is None else {"is_query": is_query}


def sparse_answer(results: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the response body of /embed_sparse for encode's results."""
    rows = [(result["sparse"]["indices"].tolist(), result["sparse"]["values"]) for result in results]
    return [[{"index": i, "value": value} for i, value in zip(*row, strict=True)] for row in rows]


def rerank_answer(asked: TeiRerank, scores: Sequence[float]) -> list[dict[str, Any]]:
    """Return the response body of /rerank, the most relevant first; `scores` are in the order of the texts."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    results = [{"index": index, "score": scores[index]} for index in ranked]
    return [each | {"text": asked.texts[int(each["index"])]} for each in results] if asked.returns_text else results


def described(what: str, spec: ModelSpec, max_items: int) -> dict[str, Any]:
    """Return the response body of /info. `pooling` is "unknown" unless the model file sets it."""
    runtime, label = spec.runtime, "LABEL_0"
    pooling = "splade" if what == SPARSE else str(spec.options.get("pooling") or "unknown")
    kinds = {SCORES: {"reranker": {"id2label": {"0": label}, "label2id": {label: 0}}}}
    return {
        "model_id": spec.model,
        "model_sha": None,
        "model_dtype": runtime.precision or ("float32" if runtime.device == "cpu" else "float16"),
        "model_type": kinds.get(what, {"embedding": {"pooling": pooling}}),
        "max_concurrent_requests": runtime.max_concurrent_requests,
        "max_input_length": spec.max_sequence_length,
        "max_batch_tokens": spec.max_batch_cost,
        "max_batch_requests": None,
        "max_client_batch_size": max_items,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "version": version("sie-triton"),
        "sha": None,
        "docker_label": None,
    }


def error(failure: Failure) -> dict[str, str]:
    """Return the body of a failure."""
    return {"error": failure.message, "error_type": TYPES.get(failure.row.tei, VALIDATION)}


TEI = Dialect(lambda row: row.tei, error)
