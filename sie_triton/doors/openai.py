"""Routes of OpenAI's HTTP API: POST /v1/embeddings, and its formats for listed models and errors."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from starlette.routing import Route

from sie_triton.client.types import EncodeResult
from sie_triton.contract.tensors import DENSE
from sie_triton.doors import openapi_dialects
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import TASKS, BodyFields
from sie_triton.doors.json_dialects import answered, fields_of, items_of
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.response_bodies import timing_of
from sie_triton.errors import InputError

# OpenAI's clients send ids of OpenAI's tokenizer. A model would read them as other words, and nothing would detect it.
IDS_REFUSED = (
    "contains token ids, which belong to another tokenizer than the model's; send texts "
    "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
)

# OpenAI's error codes by our codes; our other codes are sent in lower case.
CODES = {"MODEL_NOT_FOUND": "model_not_found", "UNAUTHORIZED": "invalid_api_key"}
SERVER_ERROR, REQUEST_ERROR, BUSY_ERROR = "server_error", "invalid_request_error", "rate_limit_error"

FULL = 429

# Fields of the body by the names that the contract and the client use.
FIELDS = {"text": "input", "items": "input"}


def routes(door: Door) -> list[Route]:
    document = partial(openapi_dialects.embeddings, door.settings.door_max_items)
    endpoint = DoorEndpoint(door, embeddings, dialect=OPENAI, types=[JSON], document=document)
    return [Route(path, endpoint, methods=["POST"], name=path[1:]) for path in ("/v1/embeddings", "/embeddings")]


async def embeddings(request: DoorRequest) -> Answer:
    wanted = read_request(fields_of(request))
    results = await _encoded(request, wanted)
    return answered(request, answer(wanted.model, results, wanted.is_base64), timing_of(results))


async def _encoded(request: DoorRequest, wanted: "Embeddings") -> list[EncodeResult]:
    door, items = request.door, items_of(wanted.texts)
    parameters = wanted.options | {"output_types": DENSE.name}
    async with Explaining(door, wanted.model, "encode", items, DENSE.name):
        return await door.backend.encode(wanted.model, items, request.seconds, parameters)


class Embeddings(NamedTuple):
    """Content of an embeddings request; `options` are request parameters."""

    model: str
    texts: list[str]
    options: dict[str, Any]
    is_base64: bool


def read_request(fields: BodyFields) -> Embeddings:
    """Read an embeddings request; InputError names the invalid field."""
    model = fields.model()
    if _holds_ids(fields.look("input")):
        raise InputError.at("input", IDS_REFUSED)
    texts = fields.texts("input")
    fields.given("user")
    is_base64 = fields.choice("encoding_format", "float", "base64") == "base64"
    task = fields.choice("task", *TASKS)
    return Embeddings(model, texts, fields.options(is_query=TASKS.get(task or "")), is_base64)


def _holds_ids(given: Any) -> bool:
    """
    >>> _holds_ids([15339]), _holds_ids([[15339], [1917]]), _holds_ids(["x"]), _holds_ids([[]]), _holds_ids("x")
    (True, True, False, False, False)
    """
    first = given[0] if isinstance(given, list) and given else None
    first = first[0] if isinstance(first, list) and first else first
    return type(first) is int


def answer(model: str, results: Sequence[Mapping[str, Any]], is_base64: bool) -> dict[str, Any]:
    """Return the response body for encode's results, with vectors as arrays, or as base64 of little-endian float32."""
    num_tokens = sum(result["token_count"] for result in results)
    data = [
        {"object": "embedding", "index": i, "embedding": as_base64(result["dense"]) if is_base64 else result["dense"]}
        for i, result in enumerate(results)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def as_base64(vector: Any) -> str:
    return b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def described(model: str) -> dict[str, Any]:
    """Return a model as OpenAI's API lists it; its creation time is unknown, so 0."""
    owner = model.partition("/")[0] if "/" in model else "sie"
    return {"id": model, "object": "model", "created": 0, "owned_by": owner}


def error(failure: Failure) -> dict[str, Any]:
    """Return the body of a failure."""
    status, code = failure.row.openai, failure.row.code
    kind = BUSY_ERROR if status == FULL else SERVER_ERROR if status >= 500 else REQUEST_ERROR
    told = {"message": failure.message, "type": kind, "param": param_of(failure.field)}
    return {"error": {**told, "code": CODES.get(code, code.lower()), **failure.more}}


# OpenAI's clients retry statuses from 500 on unless this header tells them not to.
OPENAI = Dialect(lambda row: row.openai, error, final={"X-Should-Retry": "false"})


def param_of(field: str) -> str | None:
    """Return the field of the body without an index; None for the empty one.

    >>> param_of("dimensions"), param_of("text[3]"), param_of("")
    ('dimensions', 'input', None)
    """
    name = field.partition("[")[0]
    return FIELDS.get(name, name) or None
