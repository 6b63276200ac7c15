"""Convert the responses of a server to results for callers."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sie_triton.client.types import EncodeResult, ExtractResult, ItemLike, ScoreEntry, ScoreResult, SparseVector, Timing
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import (
    CHUNKS,
    EXTRACTION,
    NUM_PAGES,
    PAGE_NUMBERS,
    SCORES,
    SPARSE_INDICES,
    SPARSE_VALUES,
    TIMING_FIELDS,
    TIMING_MS,
    TOKEN_COUNT,
    TRUNCATED,
    Tensor,
)
from sie_triton.errors import InputError, SIEError

# NumPy dtypes of quantized rows, which arrive as raw bytes, by output dtype.
VIEWS = {"float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}


LENGTHS_SUFFIX = "_lengths"

# All output tensors of encode that the contract names.
OF_CONTRACT = frozenset(
    tensor.name
    for output in ENCODE_OUTPUTS.values()
    for tensor in (
        *output.tensors,
        output.quantized,
        output.scales,
        CHUNKS,
        NUM_PAGES,
        PAGE_NUMBERS,
        TOKEN_COUNT,
        TRUNCATED,
        TIMING_MS,
    )
    if tensor is not None
)


def score_result(model: str, query: ItemLike, entries: list[ScoreEntry]) -> ScoreResult:
    result = ScoreResult(model=model, scores=entries)
    if id_of(query) is not None:
        result["query_id"] = str(id_of(query))
    return result


def score_entries(response: Any, ids: Sequence[str]) -> list[ScoreEntry]:
    """Return one entry per item, or per page of a PDF, in the order of the items; ranks are not set yet."""
    scores, pages = output(response, SCORES).tolist(), pages_of(response, len(ids))
    places = [(name, number) for name, numbers in zip(ids, pages, strict=True) for number in numbers or [0]]
    entries: list[ScoreEntry] = []
    for (name, number), score in zip(places, scores, strict=True):
        entry = ScoreEntry(item_id=name, score=score, rank=0)
        if number:
            entry["page"] = number
        entries.append(entry)
    _mark_truncated(response, entries)
    return entries


def id_of(item: ItemLike) -> Any:
    return None if isinstance(item, str) else item.get("id")


def output(response: Any, tensor: Tensor) -> npt.NDArray[Any]:
    """Return an output tensor that every model of this package has; SIEError if it is missing."""
    values: npt.NDArray[Any] | None = response.as_numpy(tensor.name)
    if values is None:
        raise SIEError(f"model: has no output {tensor.name}, so sie-triton did not render it")
    return values


def timing_of(response: Any) -> Timing:
    milliseconds = output(response, TIMING_MS).tolist()
    timing: Any = {f"{name}_ms": ms for name, ms in zip(TIMING_FIELDS, milliseconds, strict=True)}
    return cast(Timing, timing)


def encode_results(
    response: Any, items: Sequence[ItemLike], types: Iterable[str] | None, dtype: str
) -> list[EncodeResult]:
    """Split a response's tensors into one result per item; `types` None: all output types in the response."""
    # A model that extracts without labels also accepts the request of an encode.
    if response.as_numpy(EXTRACTION.name) is not None:
        raise InputError.at("model", "does not encode; call extract")
    counts, timing = output(response, TOKEN_COUNT).tolist(), timing_of(response)
    results = [EncodeResult(token_count=each, timing=timing) for each in counts]
    for each in types or (*ENCODE_OUTPUTS, *own_outputs(response)):
        values = output_values(response, each, dtype)
        for result, value in zip(results, values, strict=bool(values)):
            result[each] = value  # type: ignore[literal-required]
        for result, row in zip(results, scale_values(response, each), strict=False):
            result[f"{each}_scales"] = row  # type: ignore[literal-required]
    _mark_truncated(response, results)
    return of_items(response, items, results)


def _mark_truncated(response: Any, rows: Sequence[Any]) -> None:
    """Add `truncated` to the result of each item that the model read only in part."""
    given = response.as_numpy(TRUNCATED.name)
    for row, is_truncated in zip(rows, [] if given is None else given.tolist(), strict=False):
        if is_truncated:
            row["truncated"] = True


def extract_results(response: Any, items: Sequence[ItemLike]) -> list[ExtractResult]:
    """Decode a response's JSON into one result per item."""
    found, counts, timing = output(response, EXTRACTION), output(response, TOKEN_COUNT).tolist(), timing_of(response)
    results = [
        cast(ExtractResult, json.loads(text)) | ExtractResult(token_count=token_count, timing=timing)
        for text, token_count in zip(found, counts, strict=True)
    ]
    _mark_truncated(response, results)
    return of_items(response, items, results)


def of_items(response: Any, items: Sequence[ItemLike], rows: Sequence[Any]) -> list[Any]:
    """Convert results of rows to results of items with their ids.

    The result of a PDF contains those of its pages, that of a text that was split those of its chunks.
    """
    results, start = [], 0
    kind, places = _places(response, len(items))
    for item, places_of_item in zip(items, places, strict=True):
        of_item = rows[start : start + max(1, len(places_of_item))]
        start += len(of_item)
        if places_of_item:
            parts = [{**row, **place} for row, place in zip(of_item, places_of_item, strict=True)]
            result = {kind: parts, "token_count": sum(row["token_count"] for row in of_item)}
            result["timing"] = of_item[0]["timing"]
        else:
            (result,) = of_item
        results.append(result if id_of(item) is None else {**result, "id": id_of(item)})
    return results


def _places(response: Any, num_items: int) -> tuple[str, list[list[dict[str, int]]]]:
    """Return the name of the parts of items, and for each item the places of its rows; none if it has only one row."""
    chunks = response.as_numpy(CHUNKS.name)
    if chunks is None or not len(chunks):
        return "pages", [[{"page": number} for number in numbers] for numbers in pages_of(response, num_items)]
    places: list[list[dict[str, int]]] = [[] for _ in range(num_items)]
    for item, start, end in chunks.tolist():
        places[item].append({"start": start, "end": end})
    return "chunks", places


def pages_of(response: Any, num_items: int) -> list[list[int]]:
    """Return, for each item, the numbers of the pages that were read; empty unless the item is a PDF."""
    counts = response.as_numpy(NUM_PAGES.name)
    if counts is None:
        return [[]] * num_items
    return [each.tolist() for each in split(response.as_numpy(PAGE_NUMBERS.name), counts)]


def scale_values(response: Any, output_type: str) -> list[Any]:
    """Return the scales of one output type for each item; empty if there are none."""
    scales = ENCODE_OUTPUTS[output_type].scales if output_type in ENCODE_OUTPUTS else None
    found = None if scales is None else response.as_numpy(scales.name)
    if scales is None or found is None or not len(found):
        return []
    return split(found, response.as_numpy(scales.lengths) if scales.lengths else None)


def output_values(response: Any, output_type: str, dtype: str) -> list[Any]:
    """Return one output type for each item; empty if the model does not have it or the request did not select it."""
    if output_type not in ENCODE_OUTPUTS:
        return own_values(response, output_type)
    output = ENCODE_OUTPUTS[output_type]
    tensors: dict[str, Any] = {}
    for tensor in output.tensors:
        if (values := response.as_numpy(tensor.name)) is None:
            return []
        tensors[tensor.name] = values
    if output.quantized and dtype != "float32":
        tensors[output_type] = response.as_numpy(output.quantized.name).view(VIEWS[dtype])
    pieces = {
        tensor.name: split(tensors[tensor.name], tensors[tensor.lengths] if tensor.lengths else None)
        for tensor in output.tensors
    }
    if output_type == "sparse":
        both = zip(pieces[SPARSE_INDICES.name], pieces[SPARSE_VALUES.name], strict=True)
        return [SparseVector(indices=i, values=v) for i, v in both]
    return pieces[output_type]


def own_values(response: Any, name: str) -> list[Any]:
    """Return a family's own output for each item: a tensor `name`, ragged if there is also `name`_lengths."""
    values = response.as_numpy(name)
    return [] if values is None else split(values, response.as_numpy(f"{name}{LENGTHS_SUFFIX}"))


def own_outputs(response: Any) -> list[str]:
    """Return the names of the outputs that the contract does not define."""
    found = response.get_response()
    outputs = found["outputs"] if isinstance(found, dict) else found.outputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in outputs]
    return [
        name for name in names if name not in OF_CONTRACT and name.removesuffix(LENGTHS_SUFFIX) not in {*names} - {name}
    ]


def split(values: npt.NDArray[Any], lengths: npt.NDArray[Any] | None) -> list[npt.NDArray[Any]]:
    """Split rows by item; `lengths` None: one row per item."""
    if lengths is None:
        return list(values)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
