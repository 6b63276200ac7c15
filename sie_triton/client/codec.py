"""Between Python values and Triton's tensors: the part both clients share. No input or output here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from tritonclient.utils import InferenceServerException

from sie_triton.client.types import (
    EncodeOptions,
    EncodeResult,
    ItemLike,
    ScoreEntry,
    ScoreOptions,
    ScoreResult,
    SparseVector,
    Timing,
)
from sie_triton.contract import (
    ENCODE_OUTPUTS,
    QUANTIZED,
    QUERY,
    RAGGED,
    SCALES,
    SCORES,
    SPARSE_INDICES,
    SPARSE_VALUES,
    TEXT,
    TIMING_FIELDS,
    TIMING_MS,
    TOKEN_COUNT,
    Tensor,
)
from sie_triton.errors import BusyError, InputError, LoadError, ModelError, SIEError

STEP_SUFFIXES = ("-preprocess", "-inference", "-postprocess")
SCORE_SUFFIX = "-score"

# About what one batch of the server may cost by default (16,384 tokens); more would only be cut there.
PIECE_BYTES = 64 * 1024
PIECE_ITEMS = 512

# Rows of raw bytes → what they hold.
VIEWS = {"float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}

# Status names of gRPC and HTTP → our errors.
ERRORS: Mapping[str, type[SIEError]] = {
    "INVALID_ARGUMENT": InputError,
    "400": InputError,
    "NOT_FOUND": InputError,
    "404": InputError,
    "UNAVAILABLE": BusyError,
    "DEADLINE_EXCEEDED": BusyError,
    "503": BusyError,
    "INTERNAL": ModelError,
    "500": ModelError,
}


def parse_url(url: str) -> tuple[str, str]:
    """
    >>> parse_url("http://host:8000"), parse_url("host:8001")
    (('http', 'host:8000'), ('grpc', 'host:8001'))
    """
    if "://" not in url:
        return "grpc", url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "grpc") or not parts.netloc:
        raise InputError(f"url: {url!r} is not allowed; give http://host:port, grpc://host:port or host:port")
    return parts.scheme, parts.netloc


def encoded(items: Sequence[ItemLike], name: str = "items") -> npt.NDArray[np.object_]:
    """The texts of the items, object [n] of bytes."""
    array = np.empty(len(items), np.object_)
    for i, item in enumerate(items):
        text = item if isinstance(item, str) else item.get("text", "")
        if not isinstance(text, str):
            raise InputError(f"{name}[{i}].text: must be a string, it is {type(text).__name__}")
        array[i] = text.encode()
    return array


def pieces(sizes: Sequence[int], max_items: int = PIECE_ITEMS, max_bytes: int = PIECE_BYTES) -> list[slice]:
    """Consecutive items that go into one request each.

    >>> pieces([3, 3, 3, 9, 1], max_items=2, max_bytes=8)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    cuts, room = [0], max_bytes
    for i, size in enumerate(sizes):
        if i > cuts[-1] and (size > room or i - cuts[-1] == max_items):
            cuts.append(i)
            room = max_bytes
        room -= size
    return [slice(start, end) for start, end in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]


class Call:
    """One call with many items: the requests it takes. `query_bytes` come along with each item."""

    def __init__(
        self, tritonclient: Any, model: str, items: Sequence[ItemLike], parameters: dict[str, Any], query_bytes: int = 0
    ) -> None:
        self._tritonclient = tritonclient
        self._model = triton_name(model)
        self._items = items
        self._texts = encoded(items)
        self._parameters = parameters
        self.pieces = pieces([len(text) + query_bytes for text in self._texts])

    def arguments(self, piece: slice) -> dict[str, Any]:
        """Keyword arguments for `infer` of any of tritonclient's modules."""
        return {"model_name": self._model, "inputs": self._inputs(piece), "parameters": self._parameters}

    def _inputs(self, piece: slice) -> list[Any]:
        return [self._input(TEXT, self._texts[piece])]

    def _input(self, tensor: Tensor, texts: npt.NDArray[np.object_]) -> Any:
        made = self._tritonclient.InferInput(tensor.name, [len(texts)], tensor.dtype)
        made.set_data_from_numpy(texts)
        return made


class EncodeCall(Call):
    """One call of `encode`, and what becomes of the responses."""

    def __init__(self, tritonclient: Any, model: str, items: Any, options: Mapping[str, Any]) -> None:
        self._is_single = isinstance(items, (str, Mapping))
        parameters = request_parameters("encode", options, EncodeOptions)
        super().__init__(tritonclient, model, [items] if self._is_single else list(items), parameters)

    def results(self, responses: Iterable[Any]) -> Any:
        """The caller's results, from one response per piece: one for a single item, a list for a list."""
        both = zip(responses, self.pieces, strict=True)
        dtype = self._parameters.get("output_dtype", "float32")
        types = self._parameters.get("output_types", "")
        results = [
            result
            for response, piece in both
            for result in encode_results(response, self._items[piece], types.split(",") if types else None, dtype)
        ]
        return results[0] if self._is_single else results


class ScoreCall(Call):
    """One call of `score`; `ensemble` is the model's name, or that of its score task where encode has the name."""

    def __init__(
        self,
        tritonclient: Any,
        model: str,
        ensemble: str,
        query: ItemLike,
        items: Sequence[ItemLike],
        options: Mapping[str, Any],
    ) -> None:
        self._name, self._query = model, query
        self._query_text = encoded([query], "query")
        parameters = request_parameters("score", options, ScoreOptions)
        items = [items] if isinstance(items, (str, Mapping)) else list(items)
        super().__init__(tritonclient, ensemble, items, parameters, len(self._query_text[0]))

    def _inputs(self, piece: slice) -> list[Any]:
        return [self._input(QUERY, self._query_text), *super()._inputs(piece)]

    def results(self, responses: Iterable[Any]) -> ScoreResult:
        """All items ranked, from one response per piece."""
        read = [(response.as_numpy(SCORES.name), timing_of(response)) for response in responses]
        scores = np.concatenate([each for each, _ in read])
        ids = [f"item-{i}" if id_of(item) is None else str(id_of(item)) for i, item in enumerate(self._items)]
        entries = [
            ScoreEntry(item_id=ids[i], score=float(scores[i]), rank=rank)
            for rank, i in enumerate(np.argsort(-scores, kind="stable"))
        ]
        timing = max((timing for _, timing in read), key=lambda timing: timing["total_ms"])
        return score_result(self._name, self._query, entries) | ScoreResult(timing=timing)


def score_result(model: str, query: ItemLike, entries: list[ScoreEntry]) -> ScoreResult:
    result = ScoreResult(model=model, scores=entries)
    if id_of(query) is not None:
        result["query_id"] = str(id_of(query))
    return result


def id_of(item: ItemLike) -> Any:
    return None if isinstance(item, str) else item.get("id")


def triton_name(model: str) -> str:
    return model.replace("/", "__")


def score_ensemble(model: str, metadata: Any, *, has_score: bool) -> str:
    """What to call to score: a model that encodes too scores under another name. `metadata` is JSON or protobuf."""
    if has_score:
        return model + SCORE_SUFFIX
    inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in inputs]
    if QUERY.name not in names:
        raise InputError(f"model: {model} does not score; it takes {', '.join(names)}")
    return model


def request_parameters(task: str, given: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Request parameters of a call: its named arguments, over its `options`."""
    unknown = given.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"{task}() takes no {', '.join(sorted(unknown))}; model parameters go into options={{…}}")
    named = {name: value for name, value in given.items() if name != "options" and value is not None}
    parameters = {**(given.get("options") or {}), **named}
    output_types = parameters.get("output_types")
    if output_types is not None and not isinstance(output_types, str):
        parameters["output_types"] = ",".join(output_types)
    return parameters


def timing_of(response: Any) -> Timing:
    milliseconds = response.as_numpy(TIMING_MS.name).tolist()
    timing: Any = {f"{name}_ms": ms for name, ms in zip(TIMING_FIELDS, milliseconds, strict=True)}
    return cast(Timing, timing)


def encode_results(
    response: Any, items: Sequence[ItemLike], types: Iterable[str] | None, dtype: str
) -> list[EncodeResult]:
    """Cut a response's tensors into one result per item; `types` None: all that are there."""
    results: list[EncodeResult] = []
    for item, token_count in zip(items, response.as_numpy(TOKEN_COUNT.name).tolist(), strict=True):
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


def model_names(statistics: Any) -> list[str]:
    """Names clients call, from Triton's statistics (JSON or protobuf): they list what is ready, and are open to all."""
    models = statistics["model_stats"] if isinstance(statistics, dict) else statistics.model_stats
    names = {model["name"] if isinstance(model, dict) else model.name for model in models}
    other_tasks = {name for name in names if name.removesuffix(SCORE_SUFFIX) in names - {name}}
    return sorted(name.replace("__", "/", 1) for name in names - other_tasks if not name.endswith(STEP_SUFFIXES))


@contextmanager
def triton_errors() -> Iterator[None]:
    """Triton's exceptions as ours, with Triton's framing of our sentence removed."""
    try:
        yield
    except InferenceServerException as exc:
        status = (exc.status() or "").rpartition(".")[2]
        message = exc.message() or str(exc)
        _, _, sentence = message.partition("', ")
        text = sentence if message.startswith("in ensemble '") else message
        raise LoadError.parse(text) or ERRORS.get(status, SIEError)(text) from exc
