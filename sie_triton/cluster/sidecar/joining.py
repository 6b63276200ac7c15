"""Calls Triton for many requests at a time: those of a tenant that wait for a model and want the same share calls.

A request costs Triton's three steps about as much CPU time as the forward pass of a short text. Each tenant has calls
of its own, so that Triton, which lets small requests pass, sees those of all tenants. Below `Joiner`, pure functions of
Triton's messages make one request of several, and split its response.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from sie_triton.client.results import LENGTHS_SUFFIX
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import DEADLINE_EXCEEDED, with_parameters
from sie_triton.cluster.sidecar.metrics import JOINED
from sie_triton.cluster.sidecar.server import LocalServer, Response, is_away
from sie_triton.contract import CHUNK_TOKENS, ENCODE_OUTPUTS
from sie_triton.contract.tensors import AUDIO, ENTITIES, IMAGE, NUM_PAGES, TEXT, TIMING_MS
from sie_triton.doors.shared_calls import Apart, SharedCalls, Weight
from sie_triton.records.calls import CALL, CallLost, unless_lost
from sie_triton.system.telemetry.identity import REQUEST_ID, TRACEPARENT

log = logging.getLogger(__name__)

# Inputs with one element per item. Documents are not among them: their results have a row per page.
OF_ITEMS = frozenset({TEXT.name, IMAGE.name, AUDIO.name, ENTITIES.name})

# Parameters that may differ between requests that are joined.
OF_REQUESTS = frozenset({"timeout", CALL, REQUEST_ID, TRACEPARENT})

# Lengths of the rows of each item, by the tensor that they belong to.
LENGTHS: Mapping[str, str] = {
    tensor.name: tensor.lengths
    for output in ENCODE_OUTPUTS.values()
    for tensor in (*output.tensors, output.quantized, output.scales)
    if tensor is not None and tensor.lengths
}

SIZES = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}

# In place of a message that is joined with no other: what it contains may take many times its bytes.
EMPTY = service_pb2.ModelInferRequest()


@dataclass(slots=True)
class Sent:
    """The bytes of a ModelInferRequest. `message` is empty until it waits for others, and for ever if it does not."""

    data: bytes
    message: Any = field(default_factory=lambda: EMPTY)


class Joiner(SharedCalls[Sent, Response]):
    """Belongs to one event loop; the lines are pairs of a model and a tenant."""

    def __init__(self, server: LocalServer, limits: SidecarLimits = SidecarLimits(), **of_calls: Any) -> None:
        max_items, max_bytes = limits.max_joined_items, limits.max_joined_bytes
        super().__init__(max_items=max_items, max_bytes=max_bytes, observe=JOINED.observe, **of_calls)
        self._server, self._limits = server, limits
        self._apart: OrderedDict[Hashable, None] = OrderedDict()

    def weigh(self, request: Sent) -> Weight:
        """Parse a request. Bytes that are no request are called alone, too, and Triton refuses them."""
        size = len(request.data)
        if size > self._limits.max_joined_bytes:
            return Weight(None)
        try:
            message = service_pb2.ModelInferRequest.FromString(request.data)
        except DecodeError:
            return Weight(None)
        key = key_of(message, self._limits)
        if key is None:
            return Weight(None)
        request.message = message
        return Weight(key, num_items_of(message) or 0, size)

    def is_apart(self, key: Hashable) -> bool:
        return key in self._apart

    async def alone(self, request: Sent, seconds: float) -> Response:
        return await self._server.triton.call("ModelInfer", request.data, seconds)

    async def together(self, requests: Sequence[Sent], seconds: float) -> Sequence[Response]:
        messages = [each.message for each in requests]
        try:
            whole, call = joined(messages).SerializeToString(), self._server.calls.call()
            with call as token:
                async with unless_lost(call):
                    request = with_parameters(whole, token)
                    response = await self._server.triton.call("ModelInfer", request, seconds)
            if is_away(response):  # each of them may be what ended Triton: none is called again here
                return [response] * len(requests)
            if not response.is_ok:
                raise Apart
            parts = split(service_pb2.ModelInferResponse.FromString(response.body), messages)
        except CallLost as exc:
            raise Apart from exc
        except (NotJoinable, ValueError, LookupError, TypeError, DecodeError) as exc:
            log.warning("requests are not joined: %s", exc)
            self._keep_apart(key_of(messages[0], self._limits))
            raise Apart from exc
        return [Response(response.status, "", part.SerializeToString()) for part in parts]

    def late(self, seconds: float) -> Response:
        return Response(DEADLINE_EXCEEDED, "Deadline Exceeded", b"")

    def after(self, answer: Response, waited_s: float) -> Response:
        return replace(answer, waited_s=waited_s)

    def _keep_apart(self, key: Hashable) -> None:
        self._apart[key] = None
        while len(self._apart) > self._limits.max_apart:
            self._apart.popitem(last=False)


class NotJoinable(ValueError):
    """A response that cannot be split by items."""


def key_of(request: Any, limits: SidecarLimits = SidecarLimits()) -> bytes | None:
    """Return a hash of what requests must have in common to be joined; None if this one is joined with no other.

    A request whose trace is recorded stays alone, so that the trace is its own.
    """
    if not request.inputs or len(request.raw_input_contents) != len(request.inputs):
        return None
    if len(request.inputs) + len(request.outputs) + len(request.parameters) > limits.max_joined_parts:
        return None
    if CHUNK_TOKENS.name in request.parameters:  # its items may have several rows
        return None
    parameters = {name: parameter for name, parameter in request.parameters.items() if name.lower() not in OF_REQUESTS}
    if any(is_recorded(request.parameters[name].string_param) for name in request.parameters if is_trace(name)):
        return None
    if any(output.parameters for output in request.outputs):  # shared memory, or classes of all rows together
        return None
    common = service_pb2.ModelInferRequest(model_name=request.model_name, model_version=request.model_version)
    num_items = num_items_of(request)
    if num_items is None or num_items > limits.max_joined_items:
        return None
    for each, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if each.parameters or each.HasField("contents") or list(each.shape[1:]):
            return None
        if each.name in OF_ITEMS:
            if each.datatype != "BYTES" or not has_elements(raw, num_items):
                return None
            common.inputs.add(name=each.name, datatype=each.datatype)
        else:
            common.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
            common.raw_input_contents.append(raw)
    for name, parameter in parameters.items():
        common.parameters[name].CopyFrom(parameter)
    common.outputs.extend(request.outputs)
    return blake2b(common.SerializeToString(deterministic=True)).digest()


def num_items_of(request: Any) -> int | None:
    """Return the number of items of a request; None if it has no items, or inputs of different lengths."""
    shapes = {tuple(each.shape) for each in request.inputs if each.name in OF_ITEMS}
    (shape,) = shapes if len(shapes) == 1 else ((),)
    return shape[0] if len(shape) == 1 and shape[0] > 0 else None


def has_elements(raw: bytes, number: int) -> bool:
    """Return True if a tensor of bytes has exactly so many elements: what a client says of it may be wrong."""
    try:
        _element_ends(raw, number)
    except NotJoinable:
        return False
    return True


def is_trace(parameter: str) -> bool:
    return parameter.lower() == TRACEPARENT


def is_recorded(traceparent: str) -> bool:
    """Return True if the trace is recorded, or the text is no traceparent (https://www.w3.org/TR/trace-context)."""
    flags = traceparent.split("-")[-1]
    return not re.fullmatch(r"[0-9a-f]{2}", flags) or bool(int(flags, 16) & 1)


def joined(requests: Sequence[Any]) -> Any:
    """Return one request with the items of several that have the same key, and the longest of their timeouts."""
    whole = service_pb2.ModelInferRequest()
    whole.CopyFrom(requests[0])
    for place, each in enumerate(whole.inputs):
        if each.name in OF_ITEMS:
            each.shape[0] = sum(request.inputs[place].shape[0] for request in requests)
            whole.raw_input_contents[place] = b"".join(request.raw_input_contents[place] for request in requests)
    for name in [name for name in whole.parameters if name.lower() in OF_REQUESTS]:
        del whole.parameters[name]
    if all("timeout" in request.parameters for request in requests):
        timeout = max(request.parameters["timeout"].int64_param for request in requests)
        whole.parameters["timeout"].int64_param = timeout
    whole.id = ""
    return whole


def split(response: Any, requests: Sequence[Any]) -> list[Any]:
    """Return the response to each of the joined requests; NotJoinable if it has tensors without a row per item."""
    counts = [num_items_of(request) or 0 for request in requests]
    ends = [0, *accumulate(counts)]
    tensors = {output.name: place for place, output in enumerate(response.outputs)}
    if len(tensors) != len(response.raw_output_contents):
        raise NotJoinable("its tensors are not raw bytes")
    if NUM_PAGES.name in tensors and response.outputs[tensors[NUM_PAGES.name]].shape[0]:
        raise NotJoinable("its rows are pages")
    parts = [
        service_pb2.ModelInferResponse(
            model_name=response.model_name, model_version=response.model_version, id=request.id
        )
        for request in requests
    ]
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == TIMING_MS.name or not output.shape[0]:
            pieces = [(list(output.shape), raw)] * len(parts)
        else:
            lengths = LENGTHS.get(output.name, f"{output.name}{LENGTHS_SUFFIX}")
            rows = _rows(response, tensors, lengths, ends) if lengths in tensors else ends
            if rows[-1] != output.shape[0]:
                raise NotJoinable(f"{output.name} has {output.shape[0]} rows, not {rows[-1]}")
            pieces = _pieces(output, raw, rows)
        for part, (shape, data) in zip(parts, pieces, strict=True):
            part.outputs.add(name=output.name, datatype=output.datatype, shape=shape)
            part.raw_output_contents.append(data)
    return parts


def _rows(response: Any, tensors: Mapping[str, int], lengths: str, ends: Sequence[int]) -> list[int]:
    """Return the ends of the requests in rows of a ragged tensor, from its lengths per item."""
    place = tensors[lengths]
    if (dtype := SIZES.get(response.outputs[place].datatype)) is None:
        raise NotJoinable(f"{lengths} has no integers")
    per_item = np.frombuffer(response.raw_output_contents[place], dtype)
    if len(per_item) != ends[-1]:
        raise NotJoinable(f"{lengths} has {len(per_item)} lengths, not {ends[-1]}")
    sums = np.concatenate(([0], np.cumsum(per_item)))
    return [int(sums[end]) for end in ends]


def _pieces(output: Any, raw: bytes, rows: Sequence[int]) -> list[tuple[list[int], bytes]]:
    """Return shape and bytes of each request's part of a tensor, which ends at these rows."""
    if output.datatype == "BYTES":
        places = _element_ends(raw, rows[-1] * max(1, int(np.prod(output.shape[1:], dtype=np.int64))))
        width = (len(places) - 1) // rows[-1]
        cuts = [places[row * width] for row in rows]
    else:
        num_bytes, rest = divmod(len(raw), rows[-1])
        if rest:
            raise NotJoinable(f"{output.name} has {len(raw)} bytes for {rows[-1]} rows")
        cuts = [row * num_bytes for row in rows]
    tail = list(output.shape[1:])
    return [
        ([end_row - row, *tail], raw[start:end])
        for (row, end_row), (start, end) in zip(pairwise(rows), pairwise(cuts), strict=True)
    ]


def _element_ends(raw: bytes, num_elements: int) -> list[int]:
    """Return the places at which the elements of a tensor of bytes begin, and its end: each follows its size."""
    places = [0]
    for _ in range(num_elements):
        if places[-1] + 4 > len(raw):
            raise NotJoinable("it has too few elements")
        size = int.from_bytes(raw[places[-1] : places[-1] + 4], "little")
        places.append(places[-1] + 4 + size)
    if places[-1] != len(raw):
        raise NotJoinable("its bytes do not have the sizes that they say")
    return places
