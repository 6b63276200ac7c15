"""Code shared by the routes of other HTTP dialects, whose requests and responses are always JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from sie_triton.contract.tensors import TEXT
from sie_triton.doors.endpoint import Answer, DoorRequest
from sie_triton.doors.fields import BodyFields
from sie_triton.doors.response_bodies import timing_headers
from sie_triton.doors.wire import JSON


def fields_of(request: DoorRequest) -> BodyFields:
    return BodyFields(request.content, request.door.settings.door_max_items)


def items_of(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return items for the backend."""
    return [{TEXT.name: text} for text in texts]


def in_order(result: Mapping[str, Any]) -> list[float]:
    """Return the scores of a ranked result in the order of its items."""
    entries = sorted(result["scores"], key=lambda entry: int(entry["item_id"].removeprefix("item-")))
    return [entry["score"] for entry in entries]


def answered(
    request: DoorRequest, value: Any, timing: Mapping[str, float], headers: Mapping[str, str] | None = None
) -> Answer:
    """Return a response with `value`, which may contain arrays, and headers with `timing`, given under SIE's names."""
    return Answer(value, JSON, {**timing_headers(request.timed(timing)), **(headers or {})})
