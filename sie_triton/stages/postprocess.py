"""inference → postprocess → client: transforms the request asked for, and the timing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import (
    DENSE,
    ENCODE_OUTPUTS,
    LENGTHS,
    MULTIVECTOR,
    MULTIVECTOR_LENGTHS,
    MUVERA,
    QUANTIZED,
    RAGGED,
    SCALED_DTYPES,
    SCALES,
    SCORES,
    TIMING_MS,
    TOKEN_COUNT,
    Tensor,
    check_parameters,
)
from sie_triton.errors import InputError, SIEError
from sie_triton.parameters import forward_types, model_parameters, profile_of, wanted_types
from sie_triton.spec import ModelSpec
from sie_triton.stages.request import Answer, Outputs, Request, vector
from sie_triton.stages.seal import Seal
from sie_triton.stages.stage import internal_error
from sie_triton.stages.timing import INFERENCE_STAMPS, Stamps, read_stamps, timing_ms
from sie_triton.transforms import Muvera, normalize, quantize, scales, truncate


@dataclass(slots=True)
class Vectors:
    """One request: what it asks for, and its tensors so far, by name; of a request to score, its scores.

    `lengths`: the tokens of each item; `error`: what went wrong since it was read.
    """

    wanted: frozenset[str]
    options: dict[str, Any]
    stamps: Stamps
    lengths: npt.NDArray[np.int32]
    tensors: dict[str, npt.NDArray[Any]]
    error: SIEError | None = None

    @property
    def is_query(self) -> bool:
        return bool(self.options.get("is_query", False))


class Postprocess:
    """Needs nothing loaded: never cold, never defers."""

    name = "postprocess"

    def __init__(self, spec: ModelSpec, seal: Seal) -> None:
        self._spec = spec
        self._seal = seal
        self._widths = {DENSE.name: spec.dense_dim, MULTIVECTOR.name: spec.multivector_dim}
        self._parameters = {task: model_parameters(spec, task) for task in spec.tasks}
        self._muvera = Muvera(spec.muvera, spec.multivector_dim) if spec.muvera is not None else None

    def execute(self, requests: Sequence[Request]) -> list[Answer]:
        started = monotonic_ns()
        read = [self._read(request) for request in requests]
        self._add_muvera([each for each in read if isinstance(each, Vectors) and MUVERA.name in each.wanted])
        return [self._answer(each, started) if isinstance(each, Vectors) else each for each in read]

    def close(self) -> None:
        pass

    def _read(self, request: Request) -> Vectors | SIEError:
        try:
            stamps = read_stamps(request, INFERENCE_STAMPS, "as inference writes them")
            lengths = vector(request, LENGTHS.name, np.int32)
            is_score = self._is_score(request)
            tensors = {tensor.name: _tensor(request, tensor) for tensor in self._sent(is_score)}
            self._seal.check(stamps, [*tensors.values(), lengths])
            options = check_parameters(request.parameters, self._parameters["score" if is_score else "encode"])
            wanted = frozenset() if is_score else wanted_types(self._spec, options)
            needed = self._sent(is_score) if is_score else tensors_of(forward_types(wanted))
            check_shapes({t.name: tensors[t.name] for t in needed}, len(lengths), self._widths)
            return Vectors(wanted, options, stamps, lengths, tensors)
        except SIEError as exc:
            return exc
        except Exception as exc:
            return internal_error(self.name, exc)

    def _is_score(self, request: Request) -> bool:
        tasks = self._spec.tasks
        return "encode" not in tasks or ("score" in tasks and request.tensor(SCORES.name) is not None)

    def _sent(self, is_score: bool) -> list[Tensor]:
        """What inference hands on."""
        return [SCORES] if is_score else tensors_of(self._spec.forward_types)

    def _add_muvera(self, requests: Sequence[Vectors]) -> None:
        """Encoded together, which keeps the tables in the cache; each alone where one spoils it."""
        for is_query in (True, False):
            group = [request for request in requests if request.is_query == is_query]
            try:
                self._add_muvera_to(group, is_query)
            except Exception as exc:
                if len(group) == 1:
                    group[0].error = internal_error(self.name, exc)
                else:
                    for request in group:
                        self._add_muvera([request])

    def _add_muvera_to(self, group: Sequence[Vectors], is_query: bool) -> None:
        if not group:
            return
        assert self._muvera is not None
        vectors = np.concatenate([request.tensors[MULTIVECTOR.name] for request in group])
        lengths = [request.tensors[MULTIVECTOR_LENGTHS.name] for request in group]
        encoded = self._muvera.encode(vectors, np.concatenate(lengths), is_query=is_query)
        rows = np.split(encoded, np.cumsum([len(each) for each in lengths])[:-1])
        for request, row in zip(group, rows, strict=True):
            request.tensors[MUVERA.name] = row

    def _answer(self, request: Vectors, started_ns: int) -> Answer:
        try:
            return request.error or self._outputs(request, started_ns)
        except SIEError as exc:
            return exc
        except Exception as exc:
            return internal_error(self.name, exc)

    def _outputs(self, request: Vectors, started_ns: int) -> Outputs:
        also = {TOKEN_COUNT.name: request.lengths, TIMING_MS.name: timing_ms(request.stamps, started_ns)}
        if SCORES.name in request.tensors:
            return request.tensors | also
        outputs: dict[str, npt.NDArray[Any]] = {}
        for each in self._spec.output_types:
            tensors = self._transformed(each, request) if each in request.wanted else {}
            outputs |= {tensor.name: tensors.get(tensor.name, tensor.empty()) for tensor in self._declared(each)}
        return outputs | also

    def _declared(self, output_type: str) -> list[Tensor]:
        forms = [QUANTIZED[output_type]] if output_type in QUANTIZED else []
        return [
            *ENCODE_OUTPUTS[output_type],
            *forms,
            *([SCALES[output_type]] if output_type in self._spec.scaled else []),
        ]

    def _transformed(self, output_type: str, request: Vectors) -> dict[str, npt.NDArray[Any]]:
        tensors = {tensor.name: request.tensors[tensor.name] for tensor in ENCODE_OUTPUTS[output_type]}
        if output_type == DENSE.name:
            tensors[DENSE.name] = self._dense(tensors[DENSE.name], request.options)
        dtype = request.options.get("output_dtype", "float32")
        if output_type in QUANTIZED and dtype != "float32":
            vectors = tensors.pop(output_type)
            tensors[QUANTIZED[output_type].name] = quantize(vectors, dtype)
            if output_type in self._spec.scaled and dtype in SCALED_DTYPES:
                tensors[SCALES[output_type].name] = scales(vectors, dtype)
        return tensors

    def _dense(self, dense: npt.NDArray[np.float32], options: dict[str, Any]) -> npt.NDArray[np.float32]:
        if "dimensions" in options:
            dense = truncate(dense, int(options["dimensions"]))
        return normalize(dense) if options.get("normalize", profile_of(self._spec, options).normalize) else dense


def tensors_of(types: Iterable[str]) -> list[Tensor]:
    """Those of some output types of encode."""
    return [tensor for each in types for tensor in ENCODE_OUTPUTS[each]]


def check_shapes(tensors: Mapping[str, npt.NDArray[Any]], num_items: int, widths: Mapping[str, int]) -> None:
    """InputError unless each tensor has rows for `num_items` items, or as many as its lengths say, of its width."""
    for name, array in tensors.items():
        if name in RAGGED:
            lengths, rows = tensors[RAGGED[name]], len(array)
            if lengths.min(initial=0) < 0 or int(lengths.sum(dtype=np.int64)) != rows:
                raise InputError(f"{RAGGED[name]}: must be 0 or more and sum to the rows of {name}, {rows}")
        elif len(array) != num_items:
            raise InputError(f"{name}: has {len(array)} rows; lengths tells of {num_items} items")
        if array.ndim == 2 and array.shape[1] != widths[name]:
            raise InputError(f"{name}: rows have {array.shape[1]} entries; this model's have {widths[name]}")


def _tensor(request: Request, tensor: Tensor) -> npt.NDArray[Any]:
    """Input `tensor` without its batch dimension; InputError where its shape is another."""
    array = request.tensor(tensor.name)
    if array is None or array.ndim != 1 + len(tensor.dims) or array.shape[0] != 1:
        raise InputError(f"{tensor.name}: must have shape [1, {', '.join('k' for _ in tensor.dims)}]")
    without_batch: npt.NDArray[Any] = array[0]
    return without_batch
