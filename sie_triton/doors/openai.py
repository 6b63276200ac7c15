"""Routes of OpenAI's HTTP API: POST /v1/embeddings, and its formats for listed models and errors."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from starlette.routing import Route

from sie_triton.contract.tensors import DENSE
from sie_triton.doors.endpoint import Answer, Door, DoorRequest, post
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import Ignored, ModelName, Overflowing, Texts
from sie_triton.doors.items import content_in
from sie_triton.doors.json_dialects import answered, encoded, items_of
from sie_triton.doors.openapi_dialects import TEXTS, USAGE, Operation
from sie_triton.doors.response_bodies import timing_of
from sie_triton.doors.schemas import INTEGER, NUMBERS, STRING, any_of, fields, optional, record, several
from sie_triton.errors import InputError

# OpenAI's error codes by our codes; our other codes are sent in lower case.
CODES = {"MODEL_NOT_FOUND": "model_not_found", "UNAUTHORIZED": "invalid_api_key"}

# Fields of the body by the names that the contract and the client use.
FIELDS = {"text": "input", "items": "input"}


def _refuse_ids(given: Any) -> Any:
    first = given[0] if isinstance(given, list) and given else None
    first = first[0] if isinstance(first, list) and first else first
    if type(first) is int:
        # A model would read ids of OpenAI's tokenizer as other words, and nothing would detect it.
        raise InputError.at(
            "input",
            "contains token ids, which belong to another tokenizer than the model's; send texts "
            "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)",
        )
    return given


TextsNotIds = Annotated[
    Texts, BeforeValidator(_refuse_ids), Field(description="a string or a list of strings; token ids are refused")
]


OneMessage = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1)]


class Embeddings(Overflowing):
    """Body of an embeddings request."""

    model: ModelName
    input: TextsNotIds | None = None
    messages: OneMessage | None = Field(
        None, description="in place of input, vLLM's form: one message of a user, whose parts get one vector"
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: Ignored = None
    task: Literal["retrieval.query", "retrieval.passage"] | None = Field(
        None, description="is_query, as Jina's clients send it"
    )

    def translated(self) -> dict[str, Any]:
        return {"is_query": self.task and self.task == "retrieval.query"}

    @property
    def given(self) -> str:
        """Name of the field with the items; InputError unless there is one."""
        if (self.input is None) is (self.messages is None):
            raise InputError.at("input", "give input, or messages, and not both")
        return "input" if self.messages is None else "messages"

    def items(self) -> list[dict[str, Any]]:
        """Return items for the backend; InputError names an invalid message."""
        if self.given == "input":
            return items_of(self.input or [])
        (message,) = self.messages or []
        if message.get("role") != "user":
            raise InputError.at("messages[0].role", "must be user")
        if isinstance(message.get("content"), str):
            message = {**message, "content": [{"type": "text", "text": message["content"]}]}
        return [content_in(message, "messages[0]", "role")]


VECTOR = any_of(NUMBERS, STRING | {"contentEncoding": "base64", "description": "little-endian float32"})
EMBEDDING = record(object={"const": "embedding"}, index=INTEGER, embedding=VECTOR)
FAILURE = record(
    error=fields({"message": STRING, "type": STRING, "param": optional(STRING), "code": STRING}, "message")
)
OPERATION = Operation(
    Embeddings,
    "Vectors, in OpenAI's format.",
    {"input": TEXTS},
    record(object={"const": "list"}, data=several(EMBEDDING), model=STRING, usage=USAGE),
    FAILURE,
)


def routes(door: Door) -> list[Route]:
    endpoint = OPERATION.endpoint(door, embeddings, OPENAI)
    return [post("/v1/embeddings", endpoint), post("/embeddings", endpoint)]


async def embeddings(request: DoorRequest) -> Answer:
    wanted = Embeddings.of(request)
    results = await encoded(request, wanted, wanted.model, wanted.items(), DENSE.name, wanted.options())
    wanted.check_lengths(results, wanted.given)
    is_base64 = wanted.encoding_format == "base64"
    return answered(request, answer(wanted.model, results, is_base64), timing_of(results))


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
    code = failure.row.code
    told = error_body(failure.row.openai, failure.message)["error"]
    own = {"param": param_of(failure.field), "code": CODES.get(code, code.lower())}
    return {"error": {**told, **own, **failure.more}}


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return the body of an error of which only the status is known."""
    usual = "server_error" if status >= 500 else "invalid_request_error"
    kind = "rate_limit_error" if status == 429 else usual
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


# OpenAI's clients retry statuses from 500 on unless this header tells them not to.
OPENAI = Dialect(lambda row: row.openai, error, final={"X-Should-Retry": "false"})


def param_of(field: str) -> str | None:
    """Return the field of the body without an index; None for the empty one.

    >>> param_of("dimensions"), param_of("text[3]"), param_of("")
    ('dimensions', 'input', None)
    """
    name = field.partition("[")[0]
    return FIELDS.get(name, name) or None
