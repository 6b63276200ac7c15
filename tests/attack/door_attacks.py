"""Hostile requests to the door. Each function makes one, over a connection of its own, and returns the answer."""

import base64
import http.client
import json
import random
import socket
import time
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgpack
import orjson

from tests.attack.attacks import PATIENCE_S, Attack, Unanswered, value
from tests.attack.conftest import CLAP, CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, MODELS, SPLADE, Served
from tests.support import many_parts, pdfs, pictures, sounds, unhearable, unreadable

JSON, MSGPACK = "application/json", "application/msgpack"
VERBS = ("encode", "score", "extract")

# Large bodies are rare, so that they do not saturate the network of one machine.
SMALL, LARGE = 1000, 3_000_000

USUAL = {"model": "a/other", "input": "x", "inputs": ["x"], "query": "q", "documents": ["a"], "texts": ["a"]}
USUAL |= {"text_1": "q", "text_2": ["a"], "data_1": "q", "data_2": ["a"]}
ODD = ("", "x", "org/name", "a:b:c", "\0", "蔷" * 99, 0, 1, -1, 2**53, 1e300, True, False, None, "timeout", "priority")


def odd_value(rng, depth=0):
    kind = rng.random()
    if kind < 0.6 or depth > 3:
        return rng.choice(ODD)
    values = [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if kind < 0.8 else dict(zip(("text", "mode", "x", ""), values, strict=False))


@cache
def fields_of(port: int) -> Mapping[str, Sequence[str]]:
    """Return the fields of each route of the other dialects, by its path, as the server itself documents them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=PATIENCE_S) as answer:
        paths = json.load(answer)["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods and "{" not in path}
    bodies = {path: post["requestBody"]["content"] for path, post in posts.items()}
    return {path: [*body[JSON]["schema"]["properties"]] for path, body in bodies.items() if JSON in body}


def odd_body(rng, fields):
    body = {name: USUAL[name] for name in fields if name in USUAL}
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice((*fields, "messages", "stream", "output_types", "options", "timeout", "", "é", "triton_x"))
        body[name] = odd_value(rng)
    return orjson.dumps(body) if rng.random() < 0.9 else orjson.dumps(odd_value(rng))


def asked(
    served: Served, path: str, body: bytes, *, method: str = "POST", port: int | None = None, **headers: str
) -> str:
    """Return any answer; raise Unanswered after PATIENCE_S. `port` replaces the door's port."""
    connection = http.client.HTTPConnection("127.0.0.1", port or served.settings.door_port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return f"{answer.status} {answer.read(100_000).decode(errors='replace')}"
    except TimeoutError as exc:
        raise Unanswered(f"{method} {path} {headers} {body[:200]!r}") from exc
    except (OSError, http.client.HTTPException) as exc:
        return str(exc)
    finally:
        connection.close()


def sent(served: Served, path: str, content: Any, rng: random.Random, **headers: str) -> str:
    """Send the body as JSON or as msgpack."""
    try:
        kind, body = rng.choice([(JSON, orjson.dumps), (MSGPACK, msgpack.packb)])
        return asked(served, path, body(content), Content_Type=kind, **headers)
    except (TypeError, ValueError):  # bytes are no JSON
        return asked(served, path, msgpack.packb(content), Content_Type=MSGPACK, **headers)


def path_of(rng: random.Random) -> str:
    return f"/v1/{rng.choice(VERBS)}/{rng.choice([*MODELS, 'x', '', '../..', '%00', MINILM + ':x'])}"


def dialects(rng: random.Random, served: Served) -> str:
    """Send odd fields to every route of the other dialects."""
    path, fields = rng.choice([*fields_of(served.settings.door_port).items()])
    body = odd_body(rng, fields).replace(b'"a/other"', orjson.dumps(rng.choice(MODELS)))
    return asked(served, path, body, Content_Type=rng.choice([JSON, JSON, MSGPACK, "text/plain", ""]))


def own_routes(rng: random.Random, served: Served) -> str:
    items = [rng.choice(["a", {"text": "b", "id": 3}, {"text": odd_value(rng)}, odd_value(rng)]) for _ in range(3)]
    params = {rng.choice(["output_types", "output_dtype", "labels", "options", "instruction"]): odd_value(rng)}
    body = {"items": items, "params": rng.choice([params, odd_value(rng)]), "query": rng.choice(["q", odd_value(rng)])}
    timeout = rng.choice(["0.001", "5", "-1", "nan", "x"])
    return sent(served, path_of(rng), body, rng, X_Request_Timeout=timeout, Accept=rng.choice([JSON, MSGPACK, "x"]))


def parameters(rng: random.Random, served: Served) -> str:
    options = {
        name: value(rng) for name in rng.sample(["is_query", "normalize", "profile", "lora", "sie_call", "x"], 2)
    }
    return sent(served, path_of(rng), {"items": ["a"], "query": "q", "params": {"options": options}}, rng)


def bodies(rng: random.Random, served: Served) -> str:
    """Send bodies that grow when decoded, and deeply nested ones."""
    size = rng.choice([SMALL, SMALL, SMALL, LARGE])
    kind, body = rng.choice(
        [
            (JSON, b"[" * size),
            (JSON, b"[" * 1010 + b"]" * 1010),
            (JSON, b"[" + b"{}," * (size // 3) + b"{}]"),
            (JSON, b'{"items":[' + b'"",' * (size // 3) + b'""]}'),
            (JSON, b'{"items":["' + b"\\u0000" * (size // 6) + b'"]}'),
            (MSGPACK, b"\xdd" + (size).to_bytes(4, "big") + b"\x80" * size),
            (MSGPACK, b"\x91" * size),
            (MSGPACK, b"\xdd\xff\xff\xff\xff" * (size // 5)),
            (MSGPACK, msgpack.packb({"items": [{b"nd": True, b"type": "f4," * (size // 3), b"shape": [1]}]})),
            (MSGPACK, msgpack.packb({"items": [{b"nd": True, b"type": "V9223372036854775808", b"shape": [1]}]})),
            (MSGPACK, rng.randbytes(size)),
        ]
    )
    return asked(served, rng.choice([path_of(rng), *fields_of(served.settings.door_port)]), body, Content_Type=kind)


def rank_fields(rng: random.Random, served: Served) -> str:
    names = [f"f{i}" for i in range(rng.choice([3, 20_000]))]
    documents = [{"text": "a", **dict.fromkeys(names[:2], "b")}] * rng.choice([3, 9_000])
    deep: Any = "end"
    for _ in range(rng.choice([2, 300])):
        deep = [deep]
    body = {"model": CROSS_ENCODER, "query": "q", "documents": [*documents, {"text": "a", "x": deep}]}
    return asked(served, "/v2/rerank", json.dumps(body | {"rank_fields": names, "return_documents": True}).encode())


def long_text(rng: random.Random, served: Served) -> str:
    text = rng.choice(["a", "a ", "漢", "\u0301", " ", "ab" * 500 + " "])
    length = rng.choice([10_000, 10_000, 4_000_000])
    body = {"items": [{"text": (text * length)[:length]}], "query": "q", "params": {"labels": ["x"]}}
    path = rng.choice([f"/v1/encode/{MINILM}", f"/v1/encode/{SPLADE}", f"/v1/score/{COLBERT}", f"/v1/extract/{GLINER}"])
    return sent(served, path, body, rng, X_Request_Timeout="5")


def tiff_of_one_tile(side: int = 60_000) -> bytes:
    """TIFF picture of 16 × 16 pixels whose only tile is `side` wide and high."""
    data = zlib.compress(bytes(1000))
    tags = [
        *[(256, 4, 1, 16), (257, 4, 1, 16), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)],
        *[(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, 8), (325, 4, 1, len(data))],
    ]
    table = len(tags).to_bytes(2, "little") + b"".join(
        tag.to_bytes(2, "little")
        + kind.to_bytes(2, "little")
        + count.to_bytes(4, "little")
        + what.to_bytes(4, "little")
        for tag, kind, count, what in tags
    )
    return b"II*\0" + (8 + len(data)).to_bytes(4, "little") + data + table + bytes(4)


def files(rng: random.Random, served: Served) -> str:
    """Send hostile pictures, sounds and PDFs beside valid ones."""
    model, kind, found = rng.choice(
        [
            (CLIP, "image", [each for each, _ in unreadable.unreadable().values()]),
            (CLIP, "image", [*unreadable.readable().values(), tiff_of_one_tile()]),
            (CLIP, "image", pictures.pictures()),
            (CLIP, "image", [*many_parts.of_many_parts().values()]),
            (CLIP, "image", [each for each, _ in pdfs.unreadable().values()]),
            (CLAP, "audio", [each for each, _ in unhearable.unreadable().values()]),
            (CLAP, "audio", [*unhearable.readable().values(), *sounds.sounds()]),
        ]
    )
    item = {kind: {"data": rng.choice(found)}} | rng.choice([{}, {}, {"text": "both"}])
    if rng.random() < 0.5:
        item = {name: {"data": base64.b64encode(each["data"]).decode()} for name, each in item.items() if name == kind}
    return sent(
        served, f"/v1/encode/{rng.choice([model, model, MINILM])}", {"items": [item]}, rng, X_Request_Timeout="8"
    )


def slow_pdf(rng: random.Random, served: Served) -> str:
    return sent(served, f"/v1/encode/{CLIP}", {"items": [{"image": {"data": pdfs.slow()}}]}, rng, X_Request_Timeout="2")


def gone(rng: random.Random, served: Served) -> str:
    """Send a request with a timeout of an hour, and disconnect."""
    body = orjson.dumps({"items": ["how do vines climb? " * 30] * rng.choice([1, 30, 600])})
    head = f"POST /v1/encode/{rng.choice([MINILM, COLBERT])} HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout: 3600\r\n"
    with socket.create_connection(("127.0.0.1", served.settings.door_port), PATIENCE_S) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(rng.random() / 5)
    return ""


def half_a_request(rng: random.Random, served: Served) -> str:
    """Send bytes that are not HTTP, endless bodies and invalid chunks, and open silent WebSockets."""
    head = b"POST /v1/encode/x HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = b"GET /ws/status HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    start = rng.choice(
        [
            head + b"Content-Length: 60000000\r\n\r\n" + b"x" * 500_000,
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            head + b"Content-Length: -1\r\n\r\n",
            head * 2000,
            upgrade
            + rng.choice([b"", b"Origin: https://evil.example\r\n"])
            + key
            + b"\r\n"
            + b"\x81\xff"
            + b"\xff" * 20,
            upgrade + b"\r\n",
            rng.randbytes(99),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
    )
    with socket.create_connection(("127.0.0.1", served.settings.door_port), PATIENCE_S) as connection:
        connection.sendall(start)
        time.sleep(rng.random() / 2)
        connection.settimeout(0.01)
        try:
            return connection.recv(10_000).decode(errors="replace")
        except OSError as exc:
            return str(exc)


def pages(rng: random.Random, served: Served) -> str:
    """Send GET to every route, with the headers of a foreign page."""
    path = rng.choice(["/", "/healthz", "/readyz", "/health", "/v1/models", "/openapi.json", "/docs", "/info", "/x"])
    headers = rng.choice(
        [{}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Authorization": "Bearer x"}]
    )
    return asked(
        served, path + rng.choice(["", "/", "?x=%00", "%2e%2e"]), b"", method=rng.choice(["GET", "PUT"]), **headers
    )


def batches(rng: random.Random, served: Served) -> str:
    """Upload lines of any kind, and run them, or not, before the file is deleted."""
    line = b'{"custom_id": "%d", "method": "POST", "url": "/v1/embeddings", "body": %b}\n'
    lines = [
        line % (rng.randrange(9), odd_body(rng, ("model", "input", "dimensions"))) for _ in range(rng.randrange(9))
    ]
    content = rng.choice([b"".join(lines), rng.randbytes(SMALL), b"\n" * LARGE, b"[" * LARGE])
    form = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    parts = [form % (b"file", b'; filename="f"', content), form % (b"purpose", b"", b"batch"), rng.randbytes(9)]
    body = b"".join(rng.sample(parts, rng.choice([2, 2, 3]))) + rng.choice([b"--b--\r\n", b""])
    answer = asked(served, "/v1/files", body, Content_Type="multipart/form-data; boundary=b")
    if answer.startswith("200"):
        id = json.loads(answer.partition(" ")[2])["id"]
        wanted = {"input_file_id": id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        asked(served, "/v1/batches", json.dumps(wanted).encode(), Content_Type=JSON)
        asked(served, f"/v1/files/{id}", b"", method="DELETE")
    return answer


DOOR_ATTACKS: list[Attack | Callable[[random.Random, Served], str]] = [
    *[dialects, own_routes, parameters, bodies, rank_fields, long_text, files, slow_pdf, gone, half_a_request, pages],
    batches,
]
