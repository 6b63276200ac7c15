"""Results of extract with an error for each item at fault, as SIE's server answers, in place of one for the request."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from sie_triton.client.calls import in_call, names_item
from sie_triton.client.retry import Deadline
from sie_triton.client.types import ExtractResult, Timing
from sie_triton.doors.backend import Items, spread
from sie_triton.doors.failures import failure_of
from sie_triton.errors import InputError

Extract = Callable[[slice, float], Awaitable[list[ExtractResult]]]

KINDS = ("entities", "relations", "classifications", "objects")


async def extracted_apart(items: Items, extract: Extract, seconds: float) -> list[ExtractResult]:
    """Return a result for each item, which has an `error` if the item is at fault.

    `extract` takes a part of the items and the seconds that are left. It refuses a part with such an item as a whole:
    then each item is sent again on its own.
    """
    deadline = Deadline.after(seconds)

    async def alone(i: int, left_s: float) -> ExtractResult:
        try:
            (result,) = await extract(slice(i, i + 1), left_s)
        except InputError as exc:
            return failed(items[i], in_call(exc, i))
        return result

    try:
        return await extract(slice(None), seconds)
    except InputError as exc:
        if not names_item(exc):
            raise
        if len(items) == 1:
            return [failed(items[0], exc)]
    return await spread([partial(alone, i) for i in range(len(items))], deadline)


def failed(item: Mapping[str, Any], error: InputError) -> ExtractResult:
    """Return the result of an item that is at fault; raise an error that is not the item's."""
    if not names_item(error):
        raise error
    failure = failure_of(error)
    result: dict[str, Any] = {**{kind: [] for kind in KINDS}, "data": {}, "token_count": 0}
    result["error"] = {"code": failure.row.code, "message": failure.message}
    result["timing"] = dict.fromkeys(Timing.__annotations__, 0.0)
    return cast(ExtractResult, result | ({"id": item["id"]} if "id" in item else {}))
