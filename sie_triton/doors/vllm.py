"""Routes of vLLM's HTTP API for pooling models: POST /score, /classify and /pooling. Its /rerank is in `rerank`."""

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from time import time
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

import numpy as np
from pydantic import Field, WithJsonSchema
from starlette.routing import Route

from sie_triton.client.calls import in_call
from sie_triton.client.retry import Deadline
from sie_triton.client.types import ExtractResult, ScoreResult
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE, MULTIVECTOR, TEXT
from sie_triton.doors.backend import spread
from sie_triton.doors.endpoint import Answer, Door, DoorRequest, post
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import AT_MOST, Body, Ignored, ModelName, Texts, Truncation, allowing, check_query
from sie_triton.doors.json_dialects import answered, encoded, entries_of, in_order, items_of
from sie_triton.doors.model_choice import ABLE, CLASSES, SCORES, Explaining
from sie_triton.doors.openai import OPENAI, TextsNotIds, as_base64
from sie_triton.doors.openapi_dialects import QUERY, TEXTS, USAGE, Operation
from sie_triton.doors.response_bodies import timing_of
from sie_triton.doors.schemas import INTEGER, NUMBER, NUMBERS, STRING, any_of, fields, optional, record, several
from sie_triton.errors import InputError

# Fields of a request to /score for its texts: a request has a pair.
PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))

# Outputs by task of /pooling.
OUTPUTS = {"embed": DENSE.name, "token_embed": MULTIVECTOR.name}

Activated = Annotated[bool, allowing(bool, "is not supported"), WithJsonSchema({"enum": [True]})]


class Pooled(Body):
    """Body with the fields of every route. A text beyond the model's maximum length is an error by default."""

    model: ModelName
    truncate_prompt_tokens: Truncation | None = Field(None, description=AT_MOST)
    use_activation: Activated | None = Field(None, description="the model's own activation is always applied")
    user: Ignored = None

    remedy: ClassVar[str] = "shorten it, or send truncate_prompt_tokens -1 to truncate it"

    @property
    def refuses_long(self) -> bool:
        return self.truncate_prompt_tokens is None


class Score(Pooled):
    """Body of a request to /score: a text with each of several, or the pairs of two lists of equal length.

    A model that encodes and does not score answers cosines of its vectors.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    def lists(self) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
        """Return the names of the two fields with their texts; InputError unless they are a pair of fitting lengths."""
        names = ("text_1", "queries", "data_1", "text_2", "documents", "items", "data_2")
        given = tuple(name for name in names if getattr(self, name) is not None)
        if given not in PAIRS:
            allowed = "; or ".join(" and ".join(pair) for pair in PAIRS)
            raise InputError.at("text_1", f"give {allowed}")
        first, second = given
        queries, texts = getattr(self, first), getattr(self, second)
        if len(queries) not in (1, len(texts)):
            raise InputError.at(first, f"has {len(queries)} texts, {second} {len(texts)}; give one, or equally many")
        return (first, queries), (second, texts)


class Cosines(Score):
    """Body of a request to /score whose model encodes and does not score."""

    fixed: ClassVar[Mapping[str, Any]] = {"normalize": True}


class Classify(Pooled):
    """Body of a request to /classify, which answers the scores of all of the model's labels, in their order."""

    input: TextsNotIds
    truncate_prompt_tokens: None = Field(None, description="a long text is read as a whole, in windows")
    threshold: None = Field(None, description="the scores of all labels are returned")

    fixed: ClassVar[Mapping[str, Any]] = {"ranked": False}


class Pooling(Pooled):
    """Body of a request to /pooling."""

    input: TextsNotIds
    task: Literal["embed", "token_embed"] | None = Field(
        None, description="embed, if the model can, else token_embed by default"
    )
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None


COUNTED = fields({**USAGE["properties"], "completion_tokens": INTEGER}, "prompt_tokens", "total_tokens")
FAILURE = record(error=record(message=STRING, type=STRING, param=optional(STRING), code=INTEGER))


def _listed(**properties: Any) -> dict[str, Any]:
    """Return the schema of a response with an entry for each text or pair."""
    return record(
        id=STRING,
        object={"const": "list"},
        created=INTEGER,
        model=STRING,
        data=several(record(index=INTEGER, **properties)),
        usage=COUNTED,
    )


VECTORS = any_of(NUMBERS, several(NUMBERS), STRING | {"contentEncoding": "base64"})
OF_SCORE = Operation(
    Score,
    "Scores of pairs of texts, in vLLM's format.",
    {"text_1": QUERY, "text_2": TEXTS},
    _listed(object={"const": "score"}, score=NUMBER),
    FAILURE,
    SCORES,
)
OF_CLASSIFY = Operation(
    Classify,
    "Scores of the labels of a classifier, in vLLM's format.",
    {"input": TEXTS},
    _listed(label=optional(STRING), probs=NUMBERS, num_classes=INTEGER),
    FAILURE,
    CLASSES,
)
OF_POOLING = Operation(
    Pooling,
    "A vector for each text, or for each of its tokens, in vLLM's format.",
    {"input": TEXTS, "task": "embed"},
    _listed(object={"const": "pooling"}, data=VECTORS),
    FAILURE,
)


def routes(door: Door) -> list[Route]:
    return [
        post("/score", OF_SCORE.endpoint(door, score, VLLM), "vllm_score"),
        post("/v1/score", OF_SCORE.endpoint(door, score, VLLM), "vllm_v1_score"),
        post("/classify", OF_CLASSIFY.endpoint(door, classify, VLLM), "vllm_classify"),
        post("/pooling", OF_POOLING.endpoint(door, pooling, VLLM), "vllm_pooling"),
    ]


async def score(request: DoorRequest) -> Answer:
    wanted, door = Score.of(request), request.door
    (first, queries), (second, texts) = wanted.lists()
    options, items = wanted.options(), items_of(texts)
    size = len(items) // len(queries)  # all of them with one query, or one with each
    check_query(queries[0], items[:size], first, door.settings.door_max_body_bytes)
    spec = await door.served.spec(wanted.model)
    if "score" not in spec.tasks and DENSE.name in spec.dims:
        return await _cosines(request)

    async def scored(i: int, seconds: float) -> ScoreResult:
        query, part = {TEXT.name: queries[i]}, items[i * size : (i + 1) * size]
        try:
            async with Explaining(door, wanted.model, "score", part):
                return await door.backend.score(wanted.model, query, part, seconds, options)
        except InputError as exc:
            raise in_call(exc, i * size) from exc.__cause__

    results = await spread([partial(scored, i) for i in range(len(queries))], Deadline.after(request.seconds))
    wanted.check_lengths([entry for result in results for entry in entries_of(result)], second)
    entries = [{"object": "score", "score": each} for result in results for each in in_order(result)]
    return _told(request, wanted, "score", entries, results)


async def _cosines(request: DoorRequest) -> Answer:
    """Return the cosine of the vectors of each pair, by a model that encodes."""
    wanted = Cosines.of(request)
    (first, queries), (second, texts) = wanted.lists()
    items = items_of(queries + texts)
    results = await encoded(request, wanted, wanted.model, items, DENSE.name, wanted.options())
    wanted.check_lengths(results[: len(queries)], first)
    wanted.check_lengths(results[len(queries) :], second)
    vectors = np.stack([result["dense"] for result in results])
    cosines = (vectors[: len(queries)] * vectors[len(queries) :]).sum(axis=1)
    return _told(request, wanted, "score", [{"object": "score", "score": float(each)} for each in cosines], results)


async def classify(request: DoorRequest) -> Answer:
    wanted, door = Classify.of(request), request.door
    options, items = wanted.options(), items_of(wanted.input)
    spec = await door.served.spec(wanted.model)
    if not ABLE[CLASSES](spec):
        raise InputError.at("model", f"{spec.model} returns no {CLASSES} for a text; use another route")
    async with Explaining(door, wanted.model, "extract", items, body=wanted):
        results = await door.backend.extract(wanted.model, items, [], None, request.seconds, options)
    return _told(request, wanted, "classify", [_classes(result) for result in results], results)


def _classes(result: ExtractResult) -> dict[str, Any]:
    classes = result["classifications"]
    best = max(classes, key=lambda each: each["score"])
    return {"label": best["label"], "probs": [each["score"] for each in classes], "num_classes": len(classes)}


async def pooling(request: DoorRequest) -> Answer:
    wanted, door = Pooling.of(request), request.door
    items = items_of(wanted.input)
    output = OUTPUTS[wanted.task or _usual_task(await door.served.spec(wanted.model))]
    results = await encoded(request, wanted, wanted.model, items, output, wanted.options())
    wanted.check_lengths(results, "input")
    vectors: list[Any] = [result[output] for result in results]  # type: ignore[literal-required]
    if wanted.encoding_format == "base64":
        vectors = [as_base64(vector) for vector in vectors]
    return _told(request, wanted, "pooling", [{"object": "pooling", "data": vector} for vector in vectors], results)


def _usual_task(spec: ModelSpec) -> str:
    return "token_embed" if MULTIVECTOR.name in spec.dims and DENSE.name not in spec.dims else "embed"


def _told(
    request: DoorRequest, wanted: Pooled, route: str, data: Sequence[Mapping[str, Any]], results: Sequence[Any]
) -> Answer:
    """Return the response with an entry of `data` for each text or pair."""
    num_tokens = sum(result["token_count"] for result in results)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
    body = {
        "id": f"{route}-{uuid4().hex}",
        "object": "list",
        "created": int(time()),
        "model": wanted.model,
        "data": [{"index": i, **each} for i, each in enumerate(data)],
        "usage": {**usage, "prompt_tokens_details": None},
    }
    return answered(request, body, timing_of(results))


def error(failure: Failure) -> dict[str, Any]:
    status = failure.row.openai
    usual = "InternalServerError" if status >= 500 else HTTPStatus(status).phrase
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, usual)
    told = {"message": failure.message, "type": kind, "param": failure.field.partition("[")[0] or None, "code": status}
    return {"error": {**told, **failure.more}}


VLLM = Dialect(lambda row: row.openai, error, final=OPENAI.final)
