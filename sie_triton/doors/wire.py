"""Bodies of requests and answers: JSON, and msgpack with arrays as msgpack_numpy 0.4.8 writes them.

msgpack_numpy itself is not used: it reads a body of kind "O" with pickle, which would run what a client sends.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import orjson

from sie_triton.doors.failures import invalid

JSON, MSGPACK = "application/json", "application/msgpack"

# What arrays of requests may be of.
NUMERIC = frozenset("fiub")


def reader(content_type: str) -> Callable[[bytes], Any]:
    """Of bodies of that type; without one they are JSON."""
    return read_msgpack if "msgpack" in content_type else read_json


def read_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise invalid(f"body: is no JSON ({exc})") from exc


def read_msgpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, object_hook=_array)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as exc:
        raise invalid(f"body: is no msgpack ({type(exc).__name__}: {exc})") from exc


def write_json(value: Any) -> bytes:
    """Arrays become lists; halves have no type in JSON of their own, and are written as the numbers they are."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def write_msgpack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_packed)
    return packed


WRITERS: Mapping[str, Callable[[Any], bytes]] = {JSON: write_json, MSGPACK: write_msgpack}


def answer_type(accept: str | None, content_type: str) -> str:
    """What the answer to a POST is written as: what `accept` names first, msgpack if it is not there at all.

    >>> answer_type(None, JSON), answer_type("*/*", JSON), answer_type("application/x-msgpack", JSON)
    ('application/msgpack', 'application/json', 'application/msgpack')
    """
    if accept is None:
        return MSGPACK
    found = {name: accept.find(word) for name, word in ((JSON, "json"), (MSGPACK, "msgpack")) if word in accept}
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
    raise TypeError(f"{type(value).__name__} has no place in an answer")


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in an answer")


def _array(found: dict[Any, Any]) -> Any:
    """An array, of numbers only, where a map stands for one."""
    if found.get(b"nd") is not True:
        return found
    try:
        dtype = np.dtype(found[b"type"])
        if dtype.kind not in NUMERIC or found.get(b"kind", b"") not in (b"", ""):
            raise ValueError("only arrays of numbers are read")
        return np.frombuffer(found[b"data"], dtype).reshape(found[b"shape"])
    except (KeyError, TypeError, ValueError, SyntaxError) as exc:
        raise invalid(f"body: an array in it cannot be read ({exc})") from exc
