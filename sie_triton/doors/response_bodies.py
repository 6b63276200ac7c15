"""Convert results of the client to the response bodies of SIE's own server."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np

from sie_triton.client.types import EncodeResult, ExtractResult, ScoreResult, Timing
from sie_triton.contract import ENCODE_OUTPUTS

BITS = ("binary", "ubinary")

# Results of the parts of an item, which stand in place of its outputs.
PARTS = frozenset({"pages", "chunks"})

# Kinds of findings in an item.
KINDS = ("entities", "relations", "classifications", "objects")

# Fields of a result, or of a part, that are answered as they are.
PLAIN = frozenset({"truncated", "page", "start", "end"})


def encoded(
    model: str, results: Sequence[EncodeResult], dtype: str, dims: Mapping[str, int], named: Mapping[str, str]
) -> dict[str, Any]:
    """Return the body of an encode response.

    `dims` are the dimensions of each output, as far as they are known; `named` are names that outputs have in the body.
    """
    items = [_vectors(result, dtype, dims, named) for result in results]
    return {"model": model, "items": items, "usage": usage_of(results), "timing": timing_of(results)}


def needs_dims(result: EncodeResult, dtype: str) -> bool:
    """Return True if the dimensions cannot be derived from the result."""
    return dtype in BITS or "sparse" in result or not PARTS.isdisjoint(result)


def scored(result: ScoreResult) -> dict[str, Any]:
    answer: dict[str, Any] = {"model": result["model"], "scores": result["scores"]}
    if "query_id" in result:
        answer["query_id"] = result["query_id"]
    return answer | {"usage": usage_of([result]), "timing": sie_timing(result["timing"])}


def extracted(model: str, results: Sequence[ExtractResult]) -> dict[str, Any]:
    items = [{"id": f"item-{i}", **result} for i, result in enumerate(results)]
    for item in items:
        item.pop("timing", None)
    return {"model": model, "items": items, "usage": usage_of(results), "timing": timing_of(results)}


def failed(item: Mapping[str, Any], code: str, message: str) -> ExtractResult:
    """Return the result of an item that is at fault."""
    result: dict[str, Any] = {**{kind: [] for kind in KINDS}, "data": {}, "token_count": 0}
    result |= {"error": {"code": code, "message": message}, "timing": dict.fromkeys(Timing.__annotations__, 0.0)}
    return cast(ExtractResult, _with_id(item, result))


def usage_of(results: Iterable[Any]) -> dict[str, int]:
    """Return the number of tokens that the model has read."""
    return {"input_tokens": sum(result["token_count"] for result in results)}


def timing_of(results: Iterable[Any]) -> dict[str, float]:
    """Return the times of the slowest of the requests to Triton that this request was split into."""
    return sie_timing(max((result["timing"] for result in results), key=lambda timing: timing["total_ms"]))


def sie_timing(timing: Timing) -> dict[str, float]:
    """Return the times under SIE's names."""
    return {
        "total_ms": timing["total_ms"],
        "queue_ms": timing["queue_ms"],
        "batch_wait_ms": timing["batch_wait_ms"],
        "tokenization_ms": timing["preprocess_ms"],
        "inference_ms": timing["inference_ms"],
        "postprocessing_ms": timing["postprocess_ms"],
        "loading_ms": timing["loading_ms"],
    }


def timing_headers(timing: Mapping[str, float]) -> dict[str, str]:
    """
    >>> timing_headers({"total_ms": 1.25, "batch_wait_ms": 0.0})
    {'X-Total-Time': '1.25', 'X-Batch-Wait-Time': '0.00'}
    """
    return {_timing_header(name): f"{ms:.2f}" for name, ms in timing.items()}


@cache
def _timing_header(name: str) -> str:
    return f"X-{name.removesuffix('_ms').replace('_', '-').title()}-Time"


def _vectors(result: EncodeResult, dtype: str, dims: Mapping[str, int], named: Mapping[str, str]) -> dict[str, Any]:
    for kind in PARTS & result.keys():
        return _with_id(result, {kind: [_vectors(part, dtype, dims, named) for part in result[kind]]})  # type: ignore[literal-required]
    told: dict[str, Any] = {name: value for name, value in result.items() if name in PLAIN}
    for name, value in result.items():
        output = name.removesuffix("_scales")
        key = named.get(output, output) + name.removeprefix(output)
        if name == "sparse":
            told[key] = {"dims": dims.get(name), "dtype": "float32", **value}  # type: ignore[dict-item]
        elif isinstance(value, np.ndarray):
            told[key] = _array(name, value, dtype, dims) if name == output else value
    return _with_id(result, told)


def _array(name: str, values: np.ndarray[Any, Any], dtype: str, dims: Mapping[str, int]) -> dict[str, Any]:
    """Describe an array: with one dimension a vector, with two a vector for each token."""
    kind = dtype if name in ENCODE_OUTPUTS else str(values.dtype)
    if kind in BITS:
        values = values.view(np.uint8)  # SIE sends both bit formats as uint8
    size = values.shape[-1] * (8 if kind in BITS else 1)
    if 0 <= size - dims.get(name, size) < 8:
        size = dims.get(name, size)  # the last byte may be partly unused
    if values.ndim == 2:
        return {"token_dims": size, "num_tokens": len(values), "dtype": kind, "values": values}
    return {"dims": size, "dtype": kind, "values": values}


def _with_id(result: Any, told: dict[str, Any]) -> dict[str, Any]:
    return {"id": result["id"], **told} if "id" in result else told
