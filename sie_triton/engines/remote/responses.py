"""Parse and validate an endpoint's JSON responses into arrays. Pure; `where` is the URL of the request."""

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from sie_triton.contract.arrays import Floats
from sie_triton.engines.remote.limits import LIMITS
from sie_triton.errors import ModelError

Doubles = npt.NDArray[np.float64]
Answer = dict[str, Any]

ROUNDING = 1e-3


def most_bytes(num_numbers: int) -> int:
    """Return the maximum size in bytes of a response with that many numbers."""
    return LIMITS.bytes_a_number * num_numbers + LIMITS.frame_bytes


def embeddings(where: str, answer: Answer, num_items: int) -> Floats:
    """Return the embeddings of a `/v1/embeddings` response, float32 [items, dim]; ModelError if it is invalid."""
    rows = by_index(where, answer.get("data"), num_items)
    vectors = numbers(where, [row.get("embedding") for row in rows])
    if vectors.ndim != 2:
        raise ModelError(f"{where}: the response does not contain vectors")
    floats: Floats = vectors.astype(np.float32)
    return floats


def probabilities(where: str, answer: Answer, num_items: int) -> Doubles:
    """Return the probabilities of two tokens, float64 [items, 2]; ModelError if the response is invalid.

    A `/v1/score` response contains both, a `/generative_scoring` response only the first.
    """
    if "data" in answer:
        first = numbers(where, [row.get("score") for row in by_index(where, answer["data"], num_items)])
        values: Doubles = np.stack([first, 1 - first], -1)
    else:
        values = numbers(where, counted(where, answer.get("scores"), num_items))
    if values.shape != (num_items, 2) or (values < -ROUNDING).any() or (values > 1 + ROUNDING).any():
        raise ModelError(f"{where}: the response does not contain probabilities of two tokens")
    return values


def parsed(where: str, body: bytes) -> Answer:
    try:
        answer = orjson.loads(body)
    except ValueError as exc:
        raise ModelError(f"{where}: the response is not JSON") from exc
    if not isinstance(answer, dict):
        raise ModelError(f"{where}: the response is not a JSON object")
    return answer


def num_read(answer: Answer) -> int | None:
    """Return the number of tokens that the endpoint reports to have read; None if it reports none."""
    usage = answer.get("usage")
    found = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return found if isinstance(found, int) else None


def counted(where: str, given: Any, num_items: int) -> list[Any]:
    if not isinstance(given, list) or len(given) != num_items:
        count = len(given) if isinstance(given, list) else "no"
        raise ModelError(f"{where}: the response has {count} items; the request had {num_items}")
    return given


def by_index(where: str, given: Any, num_items: int) -> list[dict[str, Any]]:
    """Return the items in the order of the request, which may differ from that of the response."""
    found = [row for row in counted(where, given, num_items) if isinstance(row, dict)]
    rows = {row["index"]: row for row in found if isinstance(row.get("index"), int)}
    if set(rows) != set(range(num_items)):
        raise ModelError(f"{where}: the indices of the response's items are not 0 to {num_items - 1}")
    return [rows[index] for index in range(num_items)]


def numbers(where: str, lists: list[Any]) -> Doubles:
    """Return the numbers as an array; ModelError unless they are finite in float32 and the lists are of one size."""
    try:
        values = np.array(lists, np.float64)
    except (TypeError, ValueError) as exc:
        raise ModelError(f"{where}: the response's items differ in size, or are not numbers") from exc
    if not (np.abs(values) <= float(np.finfo(np.float32).max)).all():
        raise ModelError(f"{where}: the response has numbers that are not finite")
    return values
