"""Routes of Cohere's HTTP API for vectors: POST /v1/embed and /v2/embed."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

import numpy as np
from pydantic import Field, SkipValidation
from starlette.routing import Route

from sie_triton.client.aio import together
from sie_triton.client.types import EncodeResult
from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.contract.tensors import DENSE, IMAGE, TEXT
from sie_triton.doors.endpoint import Answer, Door, DoorRequest
from sie_triton.doors.fields import Body, Count, Ignored, Items, ModelName
from sie_triton.doors.items import content_in, file_in
from sie_triton.doors.json_dialects import answered, cut_by, encoded, items_of
from sie_triton.doors.openai import as_base64
from sie_triton.doors.openapi_dialects import TEXTS, Operation
from sie_triton.doors.rerank import FAILURE, cohere_routes
from sie_triton.doors.response_bodies import PARTS, timing_of
from sie_triton.doors.schemas import STRING, record, several
from sie_triton.errors import InputError

# The output_dtype of types that are no output_dtype themselves.
DTYPES = {"float": "float32", "base64": "float32", "binary": "ubinary"}

EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


class Embed(Body):
    """Body of a request; one of texts, images and inputs is given."""

    model: ModelName
    texts: Items[str] | None = Field(None, description="a list of strings")
    images: Items[str] | None = Field(None, description="a list of data: URLs")
    inputs: Items[SkipValidation[dict[str, Any]]] | None = Field(
        None, description="objects with content, of a text and an image at most"
    )
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = None
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1, fail_fast=True)] | None = None
    output_dimension: Count | None = None
    truncate: Literal["END", "NONE", "START"] | None = None
    max_tokens: None = Field(None, description="a text is read once, up to the model's maximum length")
    priority: Ignored = None

    remedy: ClassVar[str] = "use truncate END"

    @property
    def types(self) -> list[EmbeddingType]:
        return list(dict.fromkeys(self.embedding_types or ["float"]))

    @cached_property
    def content(self) -> tuple[str, list[dict[str, Any]]]:
        """Name of the field with the items, and the items; InputError or Failure names the invalid field."""
        given = [name for name in ("texts", "images", "inputs") if getattr(self, name)]
        if len(given) != 1:
            problem = f"give one of texts, images and inputs (texts with images); got {' and '.join(given) or 'none'}"
            raise InputError.at((given[1:] or ["texts"])[0], problem)
        if self.images:
            return "images", [{IMAGE.name: file_in(image, f"images[{i}]")} for i, image in enumerate(self.images)]
        if self.inputs:
            return "inputs", [content_in(each, f"inputs[{i}]") for i, each in enumerate(self.inputs)]
        return "texts", items_of(self.texts or [])

    def translated(self) -> dict[str, Any]:
        return {
            "dimensions": self.output_dimension,
            "is_query": {"search_query": True, "search_document": False}.get(self.input_type or ""),
            TRUNCATION_SIDE.name: {"END": "right", "START": "left"}.get(self.truncate or ""),
        }

    @property
    def refuses_long(self) -> bool:
        return self.truncate == "NONE"


OPERATION = Operation(
    Embed,
    "Vectors, in Cohere's format; give one of texts, images and inputs.",
    {"texts": TEXTS, "input_type": "search_document"},
    record(
        id=STRING,
        embeddings={"description": "vectors by their type; in the first version without embedding_types, vectors"},
        texts=several(STRING),
        meta={"type": "object"},
        response_type={"enum": ["embeddings_floats", "embeddings_by_type"]},
    ),
    FAILURE,
)


def routes(door: Door) -> list[Route]:
    return cohere_routes(door, "embed", embed, OPERATION)


async def embed(version: str, request: DoorRequest) -> Answer:
    wanted = Embed.of(request)
    (field, items), parameters = wanted.content, await _parameters(request, wanted)
    dtypes = list(dict.fromkeys(DTYPES.get(each, each) for each in wanted.types))
    results = await together(
        encoded(request, wanted, wanted.model, items, DENSE.name, parameters | {"output_dtype": dtype})
        for dtype in dtypes
    )
    wanted.check_lengths(results[0], field)
    for i, result in enumerate(results[0]):
        if not PARTS.isdisjoint(result):
            raise InputError.at(
                f"{field}[{i}]",
                "is a PDF, with a vector for each page; call /v1/encode/MODEL, or send a page as an image",
            )
    return answered(request, answer(version, wanted, dict(zip(dtypes, results, strict=True))), timing_of(results[0]))


async def _parameters(request: DoorRequest, wanted: Embed) -> dict[str, Any]:
    """Return the request parameters without the side on which texts are cut, if the model always cuts there."""
    parameters = wanted.options()
    if TRUNCATION_SIDE.name not in parameters:
        return parameters
    return cut_by(await request.door.served.spec(wanted.model), parameters, "truncate")


def answer(version: str, wanted: Embed, results: Mapping[str, Sequence[EncodeResult]]) -> dict[str, Any]:
    """Return the response body; `results` are those of each output_dtype."""
    by_type = {each: [_vector(result, each) for result in results[DTYPES.get(each, each)]] for each in wanted.types}
    is_plain = wanted.embedding_types is None and version == "1"
    num_tokens = sum(result["token_count"] for result in next(iter(results.values())))
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": num_tokens}}
    return {
        "id": str(uuid4()),
        "embeddings": by_type["float"] if is_plain else by_type,
        "texts": [item.get(TEXT.name, "") for item in wanted.content[1]],
        "meta": meta,
        "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
    }


def _vector(result: EncodeResult, kind: str) -> Any:
    vector = np.asarray(result["dense"])
    if kind == "base64":
        return as_base64(vector)
    # Signed, the bytes of ubinary are 128 less, as from sentence-transformers and vLLM, not the same bits.
    return (vector.astype(np.int16) - 128).astype(np.int8) if kind == "binary" else vector
