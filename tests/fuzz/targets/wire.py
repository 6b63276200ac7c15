"""Bodies of requests to the door: decoded, and made into requests to Triton."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sie_triton.client import grpc_aio
from sie_triton.client.calls import EncodeCall, ExtractCall, ScoreCall
from sie_triton.doors.body_codec import JSON, MSGPACK, num_values, read, write_json, write_msgpack
from sie_triton.doors.failures import Failure
from sie_triton.doors.items import item_in, items_in
from sie_triton.doors.places import EXTRACT
from sie_triton.doors.sie import parameters_in
from sie_triton.errors import InputError
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.fuzz.trees import ODD, Raw, changed, to_json, to_msgpack
from tests.support.pictures import pictures

MAX_ITEMS = 64

# A small picture, in base64.
PICTURE = b64encode(pictures(((30, 20),))[0]).decode()
FILE = {"data": PICTURE, "format": "png"}
BODIES: tuple[Any, ...] = (
    {"items": ["a", {"text": "b", "id": "1"}], "params": {"output_types": ["dense"], "options": {"is_query": True}}},
    {"items": [{"images": [FILE], "id": 7}], "params": {"output_dtype": "int8", "instruction": "find"}},
    {"query": {"text": "q"}, "items": [{"text": "a"}, "b"], "instruction": "rank", "options": {"normalize": False}},
    {"items": [{"text": "Ada"}], "params": {"labels": ["person"], "output_schema": {"a": {"type": "string"}}}},
    {"items": ["a"], "params": {"options": {"profile": "other", "normalize": True}}},
    {"items": [{"document": FILE}, {"audio": FILE}], "params": {"options": {"pages": "1-3", "dimensions": 8}}},
)


def packed_array(**fields: Any) -> dict[bytes, Any]:
    """Return an array as msgpack_numpy writes it, with other fields."""
    usual = {"nd": True, "type": "<f4", "kind": b"", "shape": [2, 2], "data": bytes(16)}
    return {name.encode(): value for name, value in (usual | fields).items()}


ARRAYS = (
    packed_array(),
    packed_array(type="|O"),
    packed_array(type=">f8", shape=[2]),
    packed_array(shape=[0]),
    packed_array(shape=[2**62, 4]),
    packed_array(type="<i2", shape=[8], data=bytes(16)),
    packed_array(type="<f2", shape=[1] * 9),
)
EXTENSIONS = tuple(
    Raw(data)
    for data in (
        b"\xd6\xff\xff\xff\xff\xff",
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\xd4\x01a",
        b"\xc1",
        b"\x81\x01\x02",
        b"\x81\xc0\xc0",
    )
)
AUDIO = {"items": [{"audio": {"data": array, "sample_rate": 16_000}} for array in ARRAYS]}


@contextmanager
def json(directory: Path) -> Iterator[Target]:
    bodies = st.one_of(changed(BODIES).map(to_json), damaged([to_json(body) for body in BODIES]))
    yield Target(bodies, lambda body: read_body(body, JSON), (Failure, InputError))


@contextmanager
def msgpack(directory: Path) -> Iterator[Target]:
    bodies, odd = (*BODIES, AUDIO), (*ODD, *ARRAYS, *EXTENSIONS)
    cases = st.one_of(changed(bodies, odd).map(to_msgpack), damaged([to_msgpack(body) for body in bodies]))
    yield Target(cases, lambda body: read_body(body, MSGPACK), (Failure, InputError))


def read_body(body: bytes, kind: str) -> None:
    """Read a body as the routes of SIE do, and make requests to Triton of it."""
    count = num_values(body, kind)
    found = read(body, kind)
    assert num_members(found, 1 if kind == JSON else 2) <= count
    if not isinstance(found, dict):
        return
    write_msgpack(without_extensions(found)) if kind == MSGPACK else write_json(found)
    items = items_in(found, MAX_ITEMS)
    call = EncodeCall(grpc_aio, "org/m", items, {"options": parameters_in(found)})
    list(map(call.arguments, call.pieces))
    if found.get("query") is not None:
        scored = ScoreCall(grpc_aio, "org/m", item_in(found["query"], "query"), items, {})
        list(map(scored.arguments, scored.pieces))
    given = parameters_in(found, EXTRACT)
    extracted = ExtractCall(grpc_aio, "org/m", items, given.pop("labels", None), None, {"options": given})
    list(map(extracted.arguments, extracted.pieces))


def num_members(value: Any, of_pair: int) -> int:
    """Return the number of values in `value`, by which the door reserves memory; `of_pair` those of a key and value."""
    if isinstance(value, dict):
        return 1 + sum(of_pair - 1 + num_members(each, of_pair) for each in value.values())
    if isinstance(value, list):
        return 1 + sum(num_members(each, of_pair) for each in value)
    return 1


def without_extensions(value: Any) -> Any:
    """Return `value` without what the door never writes."""
    if isinstance(value, dict):
        return {key: without_extensions(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(without_extensions, value))
    return value if isinstance(value, (str, bytes, int, float, np.ndarray, type(None))) else None
