"""Routes of Cohere's HTTP API for vectors: POST /v1/embed and /v2/embed."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from starlette.routing import Route

from sie_triton.client.types import EncodeResult
from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.contract.parameters import LONGEST_NAME
from sie_triton.contract.tensors import DENSE, IMAGE, TEXT
from sie_triton.doors import openapi_dialects
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest
from sie_triton.doors.fields import EMBEDDING_TYPES, INPUT_TYPES, ROLES, BodyFields
from sie_triton.doors.items import item_in
from sie_triton.doors.json_dialects import answered, check_lengths, cut_by, fields_of, items_of
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.openai import as_base64
from sie_triton.doors.rerank import COHERE
from sie_triton.doors.response_bodies import timing_of
from sie_triton.errors import InputError

# Where texts are cut.
SIDES = {"END": "right", "START": "left"}

PARTS = 'a list of at most one {"type": "text"} and one {"type": "image_url"}'


def routes(door: Door) -> list[Route]:
    document = partial(openapi_dialects.embed, door.settings.door_max_items)
    return [
        Route(
            f"/v{version}/embed",
            DoorEndpoint(door, partial(embed, version), dialect=COHERE, types=[JSON], document=document),
            methods=["POST"],
            name=f"embed_v{version}",
        )
        for version in ("1", "2")
    ]


async def embed(version: str, request: DoorRequest) -> Answer:
    wanted = await _cut(request, read_request(fields_of(request)))
    dtypes = list(dict.fromkeys(EMBEDDING_TYPES[each] for each in wanted.types))
    results = await asyncio.gather(*(_encoded(request, wanted, dtype) for dtype in dtypes))
    if wanted.refuses_long:
        check_lengths(results[0], wanted.field, "use truncate END")
    return answered(request, answer(version, wanted, dict(zip(dtypes, results, strict=True))), timing_of(results[0]))


async def _cut(request: DoorRequest, wanted: "Embed") -> "Embed":
    """Return the request without the side on which texts are cut, if the model always cuts there."""
    if TRUNCATION_SIDE.name not in wanted.options:
        return wanted
    spec = await request.door.served.spec(wanted.model)
    return wanted._replace(options=cut_by(spec, wanted.options, "truncate"))


async def _encoded(request: DoorRequest, wanted: "Embed", dtype: str) -> list[EncodeResult]:
    door = request.door
    parameters = wanted.options | {"output_types": DENSE.name, "output_dtype": dtype}
    async with Explaining(door, wanted.model, "encode", wanted.items, DENSE.name):
        return await door.backend.encode(wanted.model, wanted.items, request.seconds, parameters)


class Embed(NamedTuple):
    """Content of a request: `items` from its field `field`, the `types` of its vectors, and request parameters.

    `is_plain`: vectors without their type, as the first version returns them by default. `refuses_long`: an item beyond
    the model's maximum length is an error.
    """

    model: str
    field: str
    items: list[dict[str, Any]]
    types: list[str]
    is_plain: bool
    refuses_long: bool
    options: dict[str, Any]


def read_request(fields: BodyFields) -> Embed:
    """Read a request; InputError or Failure names the invalid field."""
    model = fields.model()
    field, items = _items(fields)
    types = _types(fields.given("embedding_types"))
    input_type = fields.choice("input_type", *INPUT_TYPES)
    truncate = fields.choice("truncate", *SIDES, "NONE")
    if fields.count("max_tokens") is not None:
        raise InputError.at("max_tokens", "is not supported: a text is read up to the model's maximum length; omit it")
    fields.given("priority")
    options = fields.options(
        dimensions=fields.count("output_dimension"),
        is_query=ROLES.get(input_type or ""),
        truncation_side=SIDES.get(truncate or ""),
    )
    return Embed(model, field, items, types or ["float"], not types, truncate == "NONE", options)


def _items(fields: BodyFields) -> tuple[str, list[dict[str, Any]]]:
    """Take the items, and the field that holds them: texts, images or inputs."""
    given = [name for name in ("texts", "images", "inputs") if fields.look(name)]
    if len(given) > 1:
        raise InputError.at(given[1], f"cannot be combined with {given[0]}; send inputs for texts with images")
    if given == ["images"]:
        images = fields.several("images")
        return "images", [item_in({IMAGE.name: image}, f"images[{i}]") for i, image in enumerate(images)]
    if given == ["inputs"]:
        inputs = fields.items("inputs", "a list of objects with content")
        return "inputs", [_item(each, f"inputs[{i}]") for i, each in enumerate(inputs)]
    return "texts", items_of(fields.several("texts"))


def _item(given: Any, name: str) -> dict[str, Any]:
    content = given.get("content") if isinstance(given, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InputError.at(f"{name}.content", f"must be {PARTS}")
    _check_keys(given, name, "content")
    item: dict[str, Any] = {}
    for part in content:
        kind, value = part.get("type"), part.get("text")
        if kind == "image_url":
            url = part.get("image_url")
            kind, value = IMAGE.name, url.get("url") if isinstance(url, Mapping) else url
        if kind not in (TEXT.name, IMAGE.name) or kind in item or not isinstance(value, str):
            raise InputError.at(f"{name}.content", f"must be {PARTS}")
        _check_keys(part, f"{name}.content", "type", part["type"])
        item[kind] = value
    return item_in(item, name)


def _check_keys(given: Mapping[Any, Any], name: str, *allowed: str) -> None:
    for key in given.keys() - set(allowed):
        raise InputError.at(f"{name}.{str(key)[:LONGEST_NAME]}", f"is not read here; allowed: {', '.join(allowed)}")


def _types(given: Any) -> list[str]:
    if given is None:
        return []
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(each, str) and each in EMBEDDING_TYPES for each in given)
    ):
        raise InputError.at("embedding_types", f"must be a list of one or more of {', '.join(EMBEDDING_TYPES)}")
    return list(dict.fromkeys(given))


def answer(version: str, wanted: Embed, results: Mapping[str, Sequence[EncodeResult]]) -> dict[str, Any]:
    """Return the response body; `results` are those of each output_dtype."""
    by_type = {each: [_vector(result, each) for result in results[EMBEDDING_TYPES[each]]] for each in wanted.types}
    is_plain = wanted.is_plain and version == "1"
    num_tokens = sum(result["token_count"] for result in next(iter(results.values())))
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": num_tokens}}
    return {
        "id": str(uuid4()),
        "embeddings": by_type["float"] if is_plain else by_type,
        "texts": [item.get(TEXT.name, "") for item in wanted.items],
        "meta": meta,
        "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
    }


def _vector(result: EncodeResult, kind: str) -> Any:
    vector = np.asarray(result["dense"])
    if kind == "base64":
        return as_base64(vector)
    # Signed, the bytes of ubinary are 128 less, as from sentence-transformers and vLLM, not the same bits.
    return (vector.astype(np.int16) - 128).astype(np.int8) if kind == "binary" else vector
