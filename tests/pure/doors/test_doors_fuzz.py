"""Random requests from a seed: their readers raise only errors that clients receive."""

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import msgpack

from sie_triton.doors.body_codec import read_json, read_msgpack
from sie_triton.doors.failures import Failure
from sie_triton.doors.items import items_in
from sie_triton.doors.sie import parameters_in

ATOMS = ["", "a", "ü", "\0", 0, -1, 2**63, 1.5, None, True, [], {}, "x" * 300]
KEYS = ["items", "text", "images", "data", "audio", "params", "options", "output_types", "output_dtype", "id", "query"]


def value(rng: random.Random, depth: int = 0) -> Any:
    if depth > 4 or rng.random() < 0.4:
        return rng.choice(ATOMS)
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def body_of(rng: random.Random) -> Any:
    body = {"items": [rng.choice(["a", {"text": "b"}, value(rng)]) for _ in range(rng.randrange(1, 4))]}
    if rng.random() < 0.1:
        array = {
            b"nd": True,
            b"type": rng.choice(["<f4", "O", "zz", 3]),
            b"shape": [rng.randrange(-1, 3)],
            b"data": b"1" * 4,
        }
        body["items"].append({"audio": {"data": array}})
    if rng.random() < 0.5:
        body["params"] = rng.choice([value(rng), {"options": value(rng)}, {"output_types": value(rng)}])
    if rng.random() < 0.3:
        body[rng.choice(KEYS)] = value(rng)
    return body


def damaged(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randrange(3)):
        if found:
            found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found[: rng.randrange(len(found) + 1)]) if rng.random() < 0.2 else bytes(found)


def written(rng: random.Random, body: Any) -> tuple[str, bytes]:
    if rng.random() < 0.5:
        try:
            return "application/msgpack", msgpack.packb(body)
        except (OverflowError, ValueError):
            pass
    plain = json.dumps(body, default=lambda each: base64.b64encode(each).decode(), skipkeys=True)
    return "application/json", plain.encode()


def requests_of(rng: random.Random, number: int, model: str) -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    """Method, path, headers, body."""
    for _ in range(number):
        kind, data = written(rng, body_of(rng))
        verb = rng.choice(["encode", "encode", "encode", "score", "extract"])
        path = rng.choice(
            [f"/v1/{verb}/{model}"] * 8 + [f"/v1/{verb}/%00%ff/x", f"/v1/{verb}/", "/v1/models/../x", "/zz"]
        )
        headers = {"Content-Type": rng.choice([kind, kind, "application/msgpack", "text/plain"])}
        if rng.random() < 0.1:
            headers["X-Request-Timeout"] = rng.choice(["5", "nan", "-1", "1e400", "x"])
        if rng.random() < 0.1:
            headers["traceparent"] = rng.choice(["00-abc-def-01", "-", "x" * 200])
        yield rng.choice(["POST"] * 9 + ["GET"]), path, headers, damaged(rng, data)


def test_request_readers_raise_only_client_errors():
    rng = random.Random(19)
    told = [failure for _ in range(3000) if (failure := failure_of_reading(*written(rng, body_of(rng)), rng))]
    assert 300 < len(told) < 2950
    assert {failure.status for failure in told} == {400}
    assert not any("\n" in failure.message for failure in told)


def failure_of_reading(kind: str, data: bytes, rng: random.Random) -> Failure | None:
    try:
        found = (read_msgpack if kind.endswith("msgpack") else read_json)(damaged(rng, data))
        if isinstance(found, dict):
            items_in(found, 100)
            parameters_in(found)
    except Failure as failure:
        return failure
    return None
