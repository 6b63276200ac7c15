"""Bodies of requests and responses: JSON, and msgpack with arrays in the format of msgpack_numpy 0.4.8.

msgpack_numpy itself is not used: it unpickles arrays of kind "O", which would execute code from clients.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import orjson

from sie_triton.doors.body_values import check_depth, json_values, msgpack_values
from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.limits import DoorLimits

Body = bytes | bytearray

JSON, MSGPACK, MULTIPART = "application/json", "application/msgpack", "multipart/form-data"

# NumPy dtypes allowed in requests: booleans, integers and floats, in either byte order.
ARRAY_TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for kind in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
    for name in (["|" + kind] if kind.endswith("1") else ["<" + kind, ">" + kind])
}

MAX_DIMENSIONS = 8

# Number of list members in a response that are serialized before other requests get a turn.
MEMBERS_A_TURN = 8

MEDIA_TYPES = {
    JSON: JSON,
    MSGPACK: MSGPACK,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
}


def media_type(content_type: str | None, allowed: Sequence[str] = (JSON, MSGPACK)) -> str:
    """Return JSON, MSGPACK or MULTIPART; JSON without a Content-Type. Failure 415 unless it is one of `allowed`.

    >>> media_type(None), media_type("application/x-msgpack"), media_type("application/json; charset=utf-8")
    ('application/json', 'application/msgpack', 'application/json')
    """
    name = (content_type or JSON).partition(";")[0].strip().lower()
    kind = MULTIPART if name == MULTIPART else MEDIA_TYPES.get(name, "")
    if kind not in allowed:
        raise Failure("media_type", f"Content-Type: {name[:80]} is not supported; send {' or '.join(allowed)}")
    return kind


def num_values(body: Body, kind: str, most: int = DoorLimits.num_values) -> int:
    """Return the number of values in a body of media type `kind`; Failure 413 beyond `most`."""
    return msgpack_values(body, most) if kind == MSGPACK else json_values(body, most)


def read(body: Body, kind: str) -> Any:
    """Decode a body of media type `kind` that `num_values` has accepted; Failure 400 if it is invalid."""
    return read_msgpack(body) if kind == MSGPACK else read_json(body)


def read_json(body: Body) -> Any:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise invalid("body", f"is not valid JSON ({exc})") from exc
    check_depth(value)
    return value


def read_msgpack(body: Body) -> Any:
    try:
        return msgpack.unpackb(body, object_hook=_array)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as exc:
        raise invalid("body", f"is not valid msgpack ({type(exc).__name__}: {exc})") from exc


def write_json(value: Any) -> bytes:
    """Return `value` as JSON. Arrays become lists, and float16 values become numbers."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def write_msgpack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_packed)
    return packed


async def written(value: Any, kind: str) -> bytes:
    """Serialize a response in media type `kind`. Other requests get a turn between the members of a long list.

    Serializing a hundred megabytes of JSON takes a second.
    """
    if not is_long(value) and not (isinstance(value, dict) and any(map(is_long, value.values()))):
        return write_msgpack(value) if kind == MSGPACK else write_json(value)
    return b"".join(
        [part async for part in _parts(value, msgpack.Packer(default=_packed) if kind == MSGPACK else None)]
    )


def is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > MEMBERS_A_TURN


async def _parts(value: Any, packer: Any) -> AsyncIterator[bytes]:
    """Yield the serialized parts of `value`, in msgpack or, without a packer, JSON; splits objects and long lists."""
    if isinstance(value, dict):
        yield packer.pack_map_header(len(value)) if packer else b"{"
        for number, (name, member) in enumerate(value.items()):
            yield packer.pack(name) if packer else (b"," if number else b"") + write_json(name) + b":"
            async for part in _parts(member, packer):
                yield part
        yield b"" if packer else b"}"
    elif is_long(value):
        yield packer.pack_array_header(len(value)) if packer else b"["
        for start in range(0, len(value), MEMBERS_A_TURN):
            members = value[start : start + MEMBERS_A_TURN]
            yield (
                b"".join(map(packer.pack, members)) if packer else (b"," if start else b"") + write_json(members)[1:-1]
            )
            await asyncio.sleep(0)
        yield b"" if packer else b"]"
    else:
        yield packer.pack(value) if packer else write_json(value)


def answer_type(accept: str | None, content_type: str) -> str:
    """Return the media type of the response to a POST: the first that `accept` names, else that of the request's body.

    >>> answer_type(None, JSON), answer_type("*/*", MSGPACK), answer_type("application/x-msgpack", JSON)
    ('application/json', 'application/msgpack', 'application/msgpack')
    """
    named = accept or ""
    found = {name: named.find(word) for name, word in ((JSON, "json"), (MSGPACK, "msgpack")) if word in named}
    if found:
        return min(found, key=found.__getitem__)
    return MSGPACK if "msgpack" in content_type else JSON


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return {
            b"nd": True,
            b"type": data.dtype.str,
            b"kind": b"",
            b"shape": value.shape,
            b"data": data.data if data.size else b"",
        }
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be serialized")


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be serialized")


def _array(found: dict[Any, Any]) -> Any:
    """Return the array that a map encodes; return any other map unchanged. Failure 400 for an unsupported array."""
    if found.get(b"nd") is not True:
        return found
    try:
        return np.frombuffer(found[b"data"], _array_type(found)).reshape(_shape(found[b"shape"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise invalid("body", f"contains an array that cannot be read ({exc})") from exc


def _array_type(found: Mapping[Any, Any]) -> np.dtype[Any]:
    name = found[b"type"]
    if not isinstance(name, str) or name not in ARRAY_TYPES or found.get(b"kind", b"") not in (b"", ""):
        raise ValueError("only arrays of numbers are supported, such as <f4")
    return ARRAY_TYPES[name]


def _shape(given: Any) -> list[int]:
    if not isinstance(given, list) or len(given) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in given):
        raise ValueError(f"its shape must be a list of at most {MAX_DIMENSIONS} integers, each at least 0")
    return given
