"""What an endpoint computed: JSON → arrays, of which nothing is believed. Pure; `where` is the URL that was asked."""

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from sie_triton.errors import ModelError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Answer = dict[str, Any]

# A number of JSON takes about 20 characters, with much room for spaces; and what stands around.
NUMBER_BYTES, FRAME_BYTES = 64, 100_000

ROUNDING = 1e-3
LARGEST = float(np.finfo(np.float32).max)


def most_bytes(num_numbers: int) -> int:
    """That an answer with so many numbers may have."""
    return NUMBER_BYTES * num_numbers + FRAME_BYTES


def embeddings(where: str, answer: Answer, num_items: int) -> Floats:
    """float32 [items, dim] of `/v1/embeddings`; ModelError says what is wrong with it."""
    rows = by_index(where, answer.get("data"), num_items)
    vectors = numbers(where, [row.get("embedding") for row in rows])
    if vectors.ndim != 2:
        raise ModelError(f"{where}: answers with what are no vectors")
    floats: Floats = vectors.astype(np.float32)
    return floats


def probabilities(where: str, answer: Answer, num_items: int) -> Doubles:
    """float64 [items, 2] of `/v1/score`, both numbers of each item, or of `/generative_scoring`, the first of them."""
    if "data" in answer:
        first = numbers(where, [row.get("score") for row in by_index(where, answer["data"], num_items)])
        values: Doubles = np.stack([first, 1 - first], -1)
    else:
        values = numbers(where, counted(where, answer.get("scores"), num_items))
    if values.shape != (num_items, 2) or (values < -ROUNDING).any() or (values > 1 + ROUNDING).any():
        raise ModelError(f"{where}: answers with what are no probabilities of two tokens")
    return values


def parsed(where: str, body: bytes) -> Answer:
    try:
        answer = orjson.loads(body)
    except ValueError as exc:
        raise ModelError(f"{where}: answers with what is no JSON") from exc
    if not isinstance(answer, dict):
        raise ModelError(f"{where}: answers with JSON that is no object")
    return answer


def num_read(answer: Answer) -> int | None:
    """Tokens that the endpoint says it has read; None where it does not say."""
    usage = answer.get("usage")
    found = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return found if isinstance(found, int) else None


def counted(where: str, given: Any, num_items: int) -> list[Any]:
    if not isinstance(given, list) or len(given) != num_items:
        count = len(given) if isinstance(given, list) else "no"
        raise ModelError(f"{where}: answers with {count} items, and was asked for {num_items}")
    return given


def by_index(where: str, given: Any, num_items: int) -> list[dict[str, Any]]:
    """In the order of the question, which is not always that of the answer."""
    rows = {row.get("index"): row for row in counted(where, given, num_items) if isinstance(row, dict)}
    if set(rows) != set(range(num_items)):
        raise ModelError(f"{where}: answers with items whose index is not 0 to {num_items - 1}")
    return [rows[index] for index in range(num_items)]


def numbers(where: str, lists: list[Any]) -> Doubles:
    """That float32 holds."""
    try:
        values = np.array(lists, np.float64)
    except (TypeError, ValueError) as exc:
        raise ModelError(f"{where}: answers with items of different sizes, or with no numbers") from exc
    if not (np.abs(values) <= LARGEST).all():
        raise ModelError(f"{where}: answers with numbers that are not finite")
    return values
