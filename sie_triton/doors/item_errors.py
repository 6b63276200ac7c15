"""Results of extract with an error for each item at fault, as SIE's server answers, in place of one for the request."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from sie_triton.client.calls import in_call, names_item
from sie_triton.client.retry import Deadline
from sie_triton.client.types import ExtractResult, Timing
from sie_triton.doors.backend import MAX_CONCURRENCY, Items
from sie_triton.doors.failures import failure_of
from sie_triton.errors import DeadlinePassed, InputError

Extract = Callable[[slice, float], Awaitable[list[ExtractResult]]]

KINDS = ("entities", "relations", "classifications", "objects")


async def extracted_apart(items: Items, extract: Extract, seconds: float) -> list[ExtractResult]:
    """Return a result for each item, which has an `error` if the item is at fault.

    `extract` takes a part of the items and the seconds that are left. It refuses a part with such an item as a whole:
    then each item is sent again on its own.
    """
    deadline, places = Deadline.after(seconds), asyncio.Semaphore(MAX_CONCURRENCY)

    async def alone(i: int) -> ExtractResult:
        async with places:
            if not deadline.left_s:
                raise DeadlinePassed("timeout: passed before all items were sent")
            try:
                (result,) = await extract(slice(i, i + 1), deadline.left_s)
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
    tasks = [asyncio.create_task(alone(i)) for i in range(len(items))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def failed(item: Mapping[str, Any], error: InputError) -> ExtractResult:
    """Return the result of an item that is at fault; raise an error that is not the item's."""
    if not names_item(error):
        raise error
    failure = failure_of(error)
    result: dict[str, Any] = {**{kind: [] for kind in KINDS}, "data": {}, "token_count": 0}
    result["error"] = {"code": failure.row.code, "message": failure.message}
    result["timing"] = dict.fromkeys(Timing.__annotations__, 0.0)
    return cast(ExtractResult, result | ({"id": item["id"]} if "id" in item else {}))
