"""Requests to Triton, and the responses of one whose answer to an item depends on the item alone."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from sie_triton.system.telemetry.identity import REQUEST_ID

DTYPES = {"FP32": "<f4", "INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8", "UINT8": "u1", "BOOL": "?"}

# A traceparent without its flags.
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"


def of_bytes(elements: Iterable[bytes]) -> bytes:
    """Return elements as Triton sends them, each after its size."""
    return b"".join(len(each).to_bytes(4, "little") + each for each in elements)


def request(*texts: bytes, id: str = "", model: str = "m", inputs: Any = (), **parameters: Any) -> Any:
    """Return a request with these texts and other `inputs`, of name → elements; names of parameters have no hyphens."""
    made = service_pb2.ModelInferRequest(model_name=model, id=id)
    for name, elements in [*dict(inputs).items(), *([("text", texts)] if texts or not inputs else [])]:
        made.inputs.add(name=name, datatype="BYTES", shape=[len(elements)])
        made.raw_input_contents.append(of_bytes(elements))
    for name, value in parameters.items():
        set_parameter(made, name.replace("x_request_id", REQUEST_ID), value)
    return made


def set_parameter(message: Any, name: str, value: Any) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(message.parameters[name], kinds[type(value)], value)


def elements_of(message: Any, name: str = "text") -> list[bytes]:
    place = [each.name for each in message.inputs].index(name)
    raw = message.raw_input_contents[place]
    return deserialize_bytes_tensor(raw).tolist() if raw else []


TIMING = np.arange(7, dtype=np.float32) + 0.5


# Tensor → dtype, dims of a row, and the name of its lengths if it is ragged.
FIXED = {
    "dense": ("FP32", [3], ""),
    "muvera": ("FP32", [2], ""),
    "dense_quantized": ("UINT8", [5], ""),
    "scores": ("FP32", [], ""),
    "token_count": ("INT32", [], ""),
    "truncated": ("BOOL", [], ""),
    "boxes": ("INT64", [2, 2], ""),
    "extraction": ("BYTES", [], ""),
    "pairs": ("BYTES", [2], ""),
}


RAGGED = {
    "multivector": ("FP32", [4], "multivector_lengths"),
    "multivector_quantized": ("UINT8", [3], "multivector_lengths"),
    "multivector_scales": ("FP32", [2], "multivector_lengths"),
    "sparse_indices": ("INT32", [], "sparse_lengths"),
    "sparse_values": ("FP32", [], "sparse_lengths"),
    "words": ("BYTES", [], "words_lengths"),
    "spans": ("INT32", [2], "spans_lengths"),
}


LENGTHS = sorted({lengths for _, _, lengths in RAGGED.values()})


TENSORS = {**FIXED, **RAGGED, **{name: ("INT32", [], "") for name in LENGTHS}, "timing_ms": ("FP32", [], "")}


def respond(message: Any, names: Sequence[str] = ("dense",), unselected: Sequence[str] = ()) -> Any:
    """Return a response with the tensors `names`, and empty ones for the `unselected`."""
    response = service_pb2.ModelInferResponse(model_name=message.model_name, model_version="1", id=message.id)
    items = elements_of(message)
    for name in names:
        dtype, tail, _ = TENSORS[name]
        if name == "timing_ms":
            add(response, name, dtype, [len(TIMING)], TIMING.tobytes())
        else:
            num_rows = sum(num_rows_of(item, name) for item in items)
            add(response, name, dtype, [num_rows, *tail], b"".join(rows_of(item, name) for item in items))
    for name in unselected:
        dtype, tail, _ = TENSORS[name]
        add(response, name, dtype, [0, *[0 for _ in tail]], b"")
    return response


def num_rows_of(item: bytes, name: str) -> int:
    lengths = TENSORS[name][2]
    return length_of(item, lengths) if lengths else 1


def length_of(item: bytes, lengths: str) -> int:
    return digest(item, lengths)[0] % 4


def rows_of(item: bytes, name: str) -> bytes:
    """Return the bytes of an item's rows of a tensor: other bytes for each item."""
    if name in LENGTHS:
        return ints(length_of(item, name))
    dtype, tail, _ = TENSORS[name]
    num = num_rows_of(item, name) * int(np.prod(tail, dtype=int))
    if dtype == "BYTES":
        return of_bytes((item + b"%d" % place) * (place % 3) for place in range(num))
    return (digest(item, name) * num)[: num * np.dtype(DTYPES[dtype]).itemsize]


def digest(item: bytes, name: str) -> bytes:
    return hashlib.sha256(item + b" " + name.encode()).digest()


def ints(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def add(response: Any, name: str, dtype: str, shape: Sequence[int], raw: bytes) -> None:
    response.outputs.add(name=name, datatype=dtype, shape=shape)
    response.raw_output_contents.append(raw)


def tensor(response: Any, name: str) -> tuple[list[int], bytes]:
    place = [each.name for each in response.outputs].index(name)
    return list(response.outputs[place].shape), response.raw_output_contents[place]
