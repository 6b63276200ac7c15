"""From the responses of a server to what callers get."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sie_triton.client.types import EncodeResult, ItemLike, ScoreEntry, ScoreResult, SparseVector, Timing
from sie_triton.contract import (
    ENCODE_OUTPUTS,
    QUANTIZED,
    RAGGED,
    SCALES,
    SPARSE_INDICES,
    SPARSE_VALUES,
    TIMING_FIELDS,
    TIMING_MS,
    TOKEN_COUNT,
    Tensor,
)
from sie_triton.errors import SIEError

# Rows of raw bytes → what they hold.
VIEWS = {"float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}


def score_result(model: str, query: ItemLike, entries: list[ScoreEntry]) -> ScoreResult:
    result = ScoreResult(model=model, scores=entries)
    if id_of(query) is not None:
        result["query_id"] = str(id_of(query))
    return result


def id_of(item: ItemLike) -> Any:
    return None if isinstance(item, str) else item.get("id")


def output(response: Any, tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor that every model of ours returns."""
    values: npt.NDArray[Any] | None = response.as_numpy(tensor.name)
    if values is None:
        raise SIEError(f"the model is none of this package's: it has no output {tensor.name}")
    return values


def timing_of(response: Any) -> Timing:
    milliseconds = output(response, TIMING_MS).tolist()
    timing: Any = {f"{name}_ms": ms for name, ms in zip(TIMING_FIELDS, milliseconds, strict=True)}
    return cast(Timing, timing)


def encode_results(
    response: Any, items: Sequence[ItemLike], types: Iterable[str] | None, dtype: str
) -> list[EncodeResult]:
    """Cut a response's tensors into one result per item; `types` None: all that are there."""
    results: list[EncodeResult] = []
    for item, token_count in zip(items, output(response, TOKEN_COUNT).tolist(), strict=True):
        result = EncodeResult(token_count=token_count, timing=timing_of(response))
        if id_of(item) is not None:
            result["id"] = id_of(item)
        results.append(result)
    for each in types or ENCODE_OUTPUTS:
        values = output_values(response, each, dtype)
        for result, value in zip(results, values, strict=bool(values)):
            result[each] = value  # type: ignore[literal-required]
        for result, row in zip(results, scale_values(response, each), strict=False):
            result[f"{each}_scales"] = row  # type: ignore[literal-required]
    return results


def scale_values(response: Any, output_type: str) -> list[Any]:
    """The scales of one output type, item by item; empty where there are none."""
    if output_type not in SCALES or (found := response.as_numpy(SCALES[output_type].name)) is None or not len(found):
        return []
    name = SCALES[output_type].name
    lengths = RAGGED.get(name)
    return split({name: found, **({lengths: response.as_numpy(lengths)} if lengths else {})}, name)


def output_values(response: Any, output_type: str, dtype: str) -> list[Any]:
    """One output type, item by item; empty where the model has no such output, or the request did not want it."""
    names = [tensor.name for tensor in ENCODE_OUTPUTS[output_type]]
    tensors = {name: response.as_numpy(name) for name in names}
    if any(tensor is None for tensor in tensors.values()):
        return []
    if output_type in QUANTIZED and dtype != "float32":
        tensors[output_type] = response.as_numpy(QUANTIZED[output_type].name).view(VIEWS[dtype])
    if output_type == "sparse":
        indices, values = (split(tensors, tensor.name) for tensor in (SPARSE_INDICES, SPARSE_VALUES))
        return [SparseVector(indices=i, values=v) for i, v in zip(indices, values, strict=True)]
    return split(tensors, output_type)


def split(tensors: Mapping[str, npt.NDArray[Any]], name: str) -> list[npt.NDArray[Any]]:
    """Tensor `name`, item by item."""
    if name not in RAGGED:
        return list(tensors[name])
    lengths = tensors[RAGGED[name]]
    return np.split(tensors[name], np.cumsum(lengths)[:-1]) if len(lengths) else []
