"""encode: turn items into vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sie_triton.contract.arrays import Ints
from sie_triton.contract.model import Computed, Model, Part, Rows
from sie_triton.contract.outputs import OUTPUT_DTYPES, SCALED_DTYPES, Output
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import CHUNKS, DENSE, MULTIVECTOR, MULTIVECTOR_LENGTHS, MUVERA, TEXT, Tensor
from sie_triton.contract.transforms import Muvera, normalize, quantize, scales, truncate
from sie_triton.contract.verb import (
    CHUNK_OVERLAP,
    CHUNK_TOKENS,
    TRUNCATION_SIDE,
    Answering,
    Options,
    Verb,
    common_parameters,
    item_tensors,
    items_of,
)
from sie_triton.errors import InputError


class Encode(Verb):
    name = "encode"

    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        return {TEXT.name: ["Hello, world"]}

    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        return item_tensors(kinds)

    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        types = tuple(model.outputs)
        dtypes = OUTPUT_DTYPES if any(output.quantized for output in model.outputs.values()) else OUTPUT_DTYPES[:1]
        of_all = (
            *common_parameters(model),
            Parameter("output_types", str, types, is_list=True, doc="output types to return"),
            Parameter("output_dtype", str, dtypes, doc="number format of vectors"),
            Parameter(
                "is_query",
                bool,
                doc="true: queries; false: documents; default: documents, with the model's default prompt if it has "
                "none for documents",
            ),
            Parameter(
                "prompt_name",
                str,
                max_characters=200,
                for_prompt=True,
                doc="prompt of the model's own files, by name",
            ),
            *((CHUNK_TOKENS, CHUNK_OVERLAP) if splits_texts(model) else ()),
        )
        if DENSE.name not in model.outputs:
            return of_all
        return (
            *of_all,
            Parameter(
                "dimensions",
                int,
                minimum=1,
                maximum=model.spec.dims[DENSE.name],
                doc="leading dimensions of dense vectors to keep before normalization",
            ),
            Parameter(
                "normalize", bool, doc="scale dense vectors to unit length; default: as in the model file, else true"
            ),
        )

    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        found = model.outputs.values()
        return (
            *(tensor for output in found for tensor in output.tensors),
            *(output.quantized for output in found if output.quantized),
            *(output.scales for output in found if output.scales and output.name in model.spec.scaled),
            *((CHUNKS,) if splits_texts(model) else ()),
        )

    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        return self.computed(model)

    def computed(self, model: Model) -> tuple[Tensor, ...]:
        return model.tensors(frozenset(output.made_of or name for name, output in model.outputs.items()))

    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        name, items = items_of(sent, model.spec.inputs)
        is_query = None if "is_query" not in given else bool(given["is_query"])
        prompt_name = str(given.get("prompt_name", ""))
        _check_prompt(given.get("instruction"), prompt_name, profile, is_query)
        instruction = self.instruction(given, profile)
        options = {**profile.parameters, **given}
        return [Part(name, items, profile, is_query, instruction, options=options, prompt_name=prompt_name)]

    def needed(self, model: Model, options: Options) -> frozenset[str]:
        return requested_outputs(model, options).needed

    def sent(self, model: Model, options: Options) -> tuple[Tensor, ...]:
        return requested_outputs(model, options).sent

    def collect(self, model: Model, options: Options, rows: Sequence[Rows], num_pieces: Ints) -> Rows:
        known = requested_outputs(model, options)
        found: Rows = {}
        for tensor in known.forwarded:
            if tensor in known.sent:
                pieces = [row[tensor.name] for row in rows]
                is_row = np.ndim(pieces[0]) < len(tensor.dims)  # else each item has several
                found[tensor.name] = np.array(pieces) if is_row else np.concatenate(pieces)
            else:
                found[tensor.name] = tensor.empty()
        return found

    def answering(self, model: Model) -> Answering:
        return Vectors(model)


def splits_texts(model: Model) -> bool:
    """Return True if a request can split long texts: the model reads them by a tokenizer that would cut them."""
    return TRUNCATION_SIDE in model.parameters


class Vectors(Answering):
    """Postprocessing of encode: MUVERA, truncation, normalisation and quantisation, as the request asks."""

    def __init__(self, model: Model) -> None:
        spec = model.spec
        self._model = model
        # What stands for outputs that a request does not select.
        self._empty = {tensor.name: tensor.empty() for tensor in Encode().outputs(model)}
        self._muvera = Muvera(spec.muvera, spec.dims[MULTIVECTOR.name]) if spec.muvera is not None else None

    def prepare(self, requests: Sequence[Computed]) -> None:
        """Compute the MUVERA encodings of all requests together, so that their tables stay in the CPU cache."""
        if self._muvera is None:
            return
        for is_query in (True, False):
            group = [
                each
                for each in requests
                if MUVERA.name in requested_outputs(self._model, each.options).wanted
                and each.options.get("is_query", False) == is_query
            ]
            if group:
                self._add_muvera(self._muvera, group, is_query)

    def outputs(self, request: Computed) -> Rows:
        outputs = dict(self._empty)
        for name in requested_outputs(self._model, request.options).wanted:
            self._transform(self._model.outputs[name], request, outputs)
        if CHUNKS.name in request.tensors:
            outputs[CHUNKS.name] = request.tensors[CHUNKS.name]
        return outputs

    def _add_muvera(self, muvera: Muvera, group: Sequence[Computed], is_query: bool) -> None:
        vectors = np.concatenate([request.tensors[MULTIVECTOR.name] for request in group])
        lengths = [request.tensors[MULTIVECTOR_LENGTHS.name] for request in group]
        encoded = muvera.encode(vectors, np.concatenate(lengths), is_query=is_query)
        rows = np.split(encoded, np.cumsum([len(each) for each in lengths])[:-1])
        for request, row in zip(group, rows, strict=True):
            request.tensors[MUVERA.name] = row

    def _transform(self, output: Output, request: Computed, outputs: Rows) -> None:
        """Put the tensors of an output type into `outputs`."""
        for tensor in output.tensors:
            outputs[tensor.name] = request.tensors[tensor.name]
        options = request.options
        if output.name == DENSE.name:
            outputs[DENSE.name] = _dense(outputs[DENSE.name], options)
        dtype = str(options.get("output_dtype", OUTPUT_DTYPES[0]))
        if output.quantized and dtype != OUTPUT_DTYPES[0]:
            vectors, outputs[output.name] = outputs[output.name], self._empty[output.name]
            outputs[output.quantized.name] = quantize(vectors, dtype)
            if output.scales and output.scales.name in self._empty and dtype in SCALED_DTYPES:
                outputs[output.scales.name] = scales(vectors, dtype)


@dataclass(frozen=True, slots=True)
class RequestedOutputs:
    """Output types of one request."""

    wanted: frozenset[str]  # to return
    needed: frozenset[str]  # that the forward pass must compute
    sent: tuple[Tensor, ...]  # tensors of this request
    forwarded: tuple[Tensor, ...]  # those of all requests


def requested_outputs(model: Model, options: Options) -> RequestedOutputs:
    return _requested_outputs(model, str(options.get("output_types", "")))


@lru_cache
def _requested_outputs(model: Model, named: str) -> RequestedOutputs:
    wanted = frozenset(named.split(",")) if named else frozenset(model.outputs)
    needed = frozenset(model.outputs[name].made_of or name for name in wanted)
    return RequestedOutputs(wanted, needed, model.tensors(needed), Encode().forwarded(model))


def _dense(dense: Any, options: Options) -> Any:
    if "dimensions" in options:
        dense = truncate(dense, int(options["dimensions"]))
    return normalize(dense) if options.get("normalize", True) else dense


def _check_prompt(instruction: Any, prompt_name: str, profile: Profile, is_query: bool | None) -> None:
    """Raise InputError for an instruction that would have no effect."""
    if not instruction:
        return
    if prompt_name:
        raise InputError.at("parameter prompt_name", "cannot be combined with instruction; send one of them")
    template = profile.query_template if is_query else profile.document_template
    if template and "{instruction}" not in template:
        role = "queries" if is_query else "documents"
        problem = (
            f"has no place in the template for {role}, {template!r}; leave it out, or change is_query or the profile"
        )
        raise InputError.at("parameter instruction", problem)
