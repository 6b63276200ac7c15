"""What routes of other people's HTTP share: JSON in and out, whoever asks."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from sie_triton.contract.tensors import TEXT
from sie_triton.doors.answers import timing_headers
from sie_triton.doors.endpoint import Request
from sie_triton.doors.failures import Failure
from sie_triton.doors.wire import JSON, write_json
from sie_triton.errors import InputError

FULL = 429


def body_of(request: Request) -> Any:
    return request.content


def items_of(texts: Sequence[str], name: str, request: Request) -> list[dict[str, Any]]:
    """As the backend takes them; InputError where they are too many. `name` is the field that they came in."""
    most = request.door.settings.door_max_items
    if len(texts) > most:
        raise InputError(f"{name}: are {len(texts)}, and SIE_DOOR_MAX_ITEMS allows {most} in a request")
    return [{TEXT.name: text} for text in texts]


def in_order(result: Mapping[str, Any]) -> list[float]:
    """The scores of a result, whose entries are ranked, in the order of its items."""
    entries = sorted(result["scores"], key=lambda entry: int(entry["item_id"].removeprefix("item-")))
    return [entry["score"] for entry in entries]


def answered(value: Any, timing: Mapping[str, float], headers: Mapping[str, str] | None = None) -> Response:
    """`timing` by SIE's names; arrays may be in `value`."""
    return Response(write_json(value), media_type=JSON, headers={**timing_headers(timing), **(headers or {})})


def full_is_429(failure: Failure) -> Failure:
    """Elsewhere, a server that cannot take a request now says that there are too many."""
    return changed(failure, FULL, {}) if failure.code == "RESOURCE_EXHAUSTED" else failure


def changed(failure: Failure, status: int, headers: Mapping[str, str]) -> Failure:
    """The same with another status, and with more headers."""
    return Failure(
        status,
        failure.code,
        failure.message,
        retry_after_s=failure.retry_after_s,
        more=failure.more,
        headers={**failure.headers, **headers},
    )
