"""Code shared by the routes of other HTTP dialects, whose requests and responses are always JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from sie_triton.client.types import EncodeResult
from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TEXT
from sie_triton.doors.backend import Items
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, DoorRequest
from sie_triton.doors.fields import Body
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.response_bodies import timing_headers
from sie_triton.errors import InputError
from sie_triton.models.families import model_of


def items_of(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{TEXT.name: text} for text in texts]


async def encoded(
    request: DoorRequest, body: Body, model: str, items: Items, output: str, parameters: Mapping[str, Any]
) -> list[EncodeResult]:
    """Return encode's results, with one output; an InputError says what the model can, and what the body may have."""
    door = request.door
    async with Explaining(door, model, "encode", items, output, body):
        return await door.backend.encode(model, items, request.seconds, {**parameters, "output_types": output})


def entries_of(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of a ranked result in the order of its items."""
    return sorted(result["scores"], key=lambda entry: int(entry["item_id"].removeprefix("item-")))


def in_order(result: Mapping[str, Any]) -> list[float]:
    """Return the scores of a ranked result in the order of its items."""
    return [entry["score"] for entry in entries_of(result)]


def answered(
    request: DoorRequest, value: Any, timing: Mapping[str, float], headers: Mapping[str, str] | None = None
) -> Answer:
    """Return a response with `value`, which may contain arrays, and headers with `timing`, given under SIE's names."""
    return Answer(value, JSON, {**timing_headers(request.timed(timing)), **(headers or {})})


def cut_by(spec: ModelSpec, options: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return `options` without the side on which texts are cut, if the model always cuts on the right.

    InputError names `field` if the options say left.
    """
    side = options.get(TRUNCATION_SIDE.name)
    if side is None or spec.is_forwarded or TRUNCATION_SIDE in model_of(spec).parameters:
        return dict(options)
    if side != "right":
        raise InputError.at(field, f"{spec.model} cuts texts at their end; omit it")
    return {name: value for name, value in options.items() if name != TRUNCATION_SIDE.name}
