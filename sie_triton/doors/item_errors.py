"""Results of extract with an error for each item at fault, as SIE's server answers, in place of one for the request."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sie_triton.client.calls import in_call, names_item
from sie_triton.client.retry import Deadline
from sie_triton.client.types import ExtractResult, Timing
from sie_triton.doors.backend import MAX_CONCURRENCY, Backend, Items
from sie_triton.doors.failures import failure_of
from sie_triton.errors import DeadlinePassed, InputError

KINDS = ("entities", "relations", "classifications", "objects")


async def extracted_apart(
    backend: Backend,
    model: str,
    items: Items,
    labels: Sequence[str],
    known: Sequence[Any] | None,
    seconds: float,
    parameters: Mapping[str, Any],
) -> list[ExtractResult]:
    """Return a result for each item, which has an `error` if the item is at fault. The arguments are the backend's.

    A stage refuses the request of such an item as a whole. All its items are then sent again, each on its own.
    """
    deadline, places = Deadline.after(seconds), asyncio.Semaphore(MAX_CONCURRENCY)

    async def extract(part: slice) -> list[ExtractResult]:
        if not deadline.left_s:
            raise DeadlinePassed("timeout: passed before all items were sent")
        entities = None if known is None else known[part]
        return await backend.extract(model, items[part], labels, entities, deadline.left_s, parameters)

    async def extract_alone(i: int) -> ExtractResult:
        try:
            async with places:
                (result,) = await extract(slice(i, i + 1))
        except InputError as exc:
            return failed(items[i], in_call(exc, i))
        return result

    try:
        return await extract(slice(None))
    except InputError as exc:
        if not names_item(exc):
            raise
        if len(items) == 1:
            return [failed(items[0], exc)]
    tasks = [asyncio.create_task(extract_alone(i)) for i in range(len(items))]
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
