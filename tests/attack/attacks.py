"""Hostile calls of Triton's clients: each function makes one, and returns the response.

Every call has a deadline. One that is told nothing by then has found a hang, and raises Unanswered.
"""

import http.client
import json
import random
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import SIEError
from tests.attack.conftest import ADMIN_TOKEN, MODELS, Served

PATIENCE_S = 30.0

# Beyond this an HTTP body without a JSON content type ends Triton 24.10, whose restart is tested on its own.
MAX_BODY = 3_000_000


class Unanswered(AssertionError):
    """The deadline passed without a response."""


def text(rng: random.Random) -> bytes:
    length = rng.choice([0, 1, 5, 40, 400, 20_000])
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(length)
    alphabet = ["a ", " ", "\u202e\u0301", "漢字🙂", "{text}{0.__class__}\x00\n"][kind]
    return (alphabet * length)[:length].encode()


def value(rng: random.Random) -> Any:
    return rng.choice(
        [True, False, 0, -1, 2**31, "", "dense", "dense,muvera", "int8", "x" * 5000, "\x00", 384, "default"]
    )


PARAMETERS = [
    "output_types",
    "output_dtype",
    "is_query",
    "instruction",
    "profile",
    "lora",
    "dimensions",
    "normalize",
    "q",
]


def parameters(rng: random.Random) -> dict[str, Any]:
    return {rng.choice(PARAMETERS): value(rng) for _ in range(rng.randrange(4))}


def array(rng: random.Random) -> np.ndarray:
    """Return an array that no step produces. It always has a batch: Triton itself never answers [0, 0]."""
    shape = [1, *rng.choice([[0], [1], [3], [1000], [2, 32], [3, 0], [100_000]])]
    kind = rng.randrange(5)
    if kind == 0:
        return np.array([text(rng) for _ in range(int(np.prod(shape)) % 50)] or [b""], object)[None]
    if kind == 1:
        return np.full(shape, rng.choice([0.0, np.nan, np.inf, -1e38]), np.float32)
    bits = np.iinfo((np.int32, np.int64, np.uint8)[kind - 2])
    return np.full(shape, rng.choice([0, 1, bits.min, bits.max]), bits.dtype)


def infer(rng: random.Random, grpc: str, model: str, tensors: Mapping[str, np.ndarray]) -> str:
    inputs = []
    for name, values in tensors.items():
        dtype = {"i4": "INT32", "i8": "INT64", "f4": "FP32", "u1": "UINT8"}.get(values.dtype.str[1:], "BYTES")
        inputs.append(triton.InferInput(name, list(values.shape), dtype))
        inputs[-1].set_data_from_numpy(values)
    outputs = rng.choice([None, None, [triton.InferRequestedOutput(rng.choice(["dense", "token_count", "context"]))]])
    timeout = rng.choice([{}, {}, {"timeout": 1}, {"timeout": 50_000}])
    with triton.InferenceServerClient(grpc) as client:
        try:
            client.infer(
                model, inputs, outputs=outputs, parameters=parameters(rng), client_timeout=PATIENCE_S, **timeout
            )
        except InferenceServerException as exc:
            if exc.status() == "StatusCode.DEADLINE_EXCEEDED":
                raise Unanswered(f"{model}: {tensors} {timeout}") from exc
            return str(exc)
    return ""


def ensemble(rng: random.Random, served: Served) -> str:
    name = triton_name(rng.choice(MODELS)) + rng.choice(["", "", "-score"])
    count = rng.choice([1, 1, 2, 8, 300])
    tensors = {"text": np.array([text(rng) for _ in range(count)], object)}
    if rng.random() < 0.4:
        tensors["query"] = np.array([text(rng)] * rng.choice([0, 1, 1, 2]), object)
    return infer(rng, served.grpc, name, tensors)


def step(rng: random.Random, served: Served) -> str:
    stage = rng.choice(["preprocess", "inference", "postprocess"])
    names = {
        "preprocess": ["encode_text", "score_text", "score_query"],
        "inference": ["input_ids", "lengths", "prompt_tokens", "token_type_ids", "cost", "context"],
        "postprocess": ["dense", "multivector", "multivector_lengths", "scores", "lengths", "context"],
    }[stage]
    tensors = {name: array(rng) for name in names if rng.random() < 0.9}
    return infer(rng, served.grpc, f"{triton_name(rng.choice(MODELS))}-{stage}", tensors)


def forged(rng: random.Random, served: Served) -> str:
    """Send inference the real output of a preprocess step with one change."""
    name = triton_name(rng.choice(MODELS[:3]))
    with triton.InferenceServerClient(served.grpc) as client:
        words = triton.InferInput("encode_text", [1, 2], "BYTES")
        words.set_data_from_numpy(np.array([[b"hello vine", b"climbs"]], object))
        try:
            sent = client.infer(f"{name}-preprocess", [words], client_timeout=PATIENCE_S)
        except InferenceServerException as exc:
            return str(exc)
        tensors = {o.name: sent.as_numpy(o.name).copy() for o in sent.get_response().outputs}
    victim = tensors[rng.choice(list(tensors))]
    if victim.size:
        victim.flat[rng.randrange(victim.size)] = victim.dtype.type(
            rng.choice([0, 7, np.iinfo(victim.dtype).min, np.iinfo(victim.dtype).max])
        )
    return infer(rng, served.grpc, f"{name}-inference", tensors)


def over_http(rng: random.Random, port: int, headers: Mapping[str, str], paths: list[str]) -> str:
    body = rng.choice(
        [
            rng.randbytes(rng.choice([0, 10, 5000, MAX_BODY])),
            json.dumps({"inputs": [{"name": "text", "shape": [rng.choice([1, 0, -1, 2**40])], "datatype": "BYTES"}]}),
            json.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [["a"]]}]}),
            "[" * 2000,
            '{"text_input": 1e999}',
        ]
    )
    method = rng.choice(["POST", "POST", "GET", "PUT", "DELETE", "OPTIONS"])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, rng.choice(paths), body, headers)
        return connection.getresponse().read().decode(errors="replace")
    except TimeoutError as exc:
        raise Unanswered(f"{method} {paths} {headers}") from exc
    except (OSError, http.client.HTTPException) as exc:
        return str(exc)
    finally:
        connection.close()


def triton_http(rng: random.Random, served: Served) -> str:
    model = triton_name(rng.choice(MODELS))
    paths = [f"/v2/models/{model}/{what}" for what in ("infer", "generate", "generate_stream", "config", "stats", "x")]
    paths += ["/v2", "/v2/models//infer", "/v2/repository/index", f"/v2/repository/models/{model}/unload", "/%00"]
    kind = rng.choice(["application/json", "application/octet-stream", "application/x-www-form-urlencoded"])
    header = rng.choice([{}, {"Inference-Header-Content-Length": str(rng.choice([-1, 5, 10**9]))}])
    return over_http(rng, served.settings.http_port, {"Content-Type": kind, **header}, paths)


def controller(rng: random.Random, served: Served) -> str:
    """Call the controller without the right token: an operator's command is no attack."""
    bearer = rng.choice(["", "Bearer x", f"Basic {ADMIN_TOKEN}", "Bearer \xe9", f"Bearer {ADMIN_TOKEN[:-1]}"])
    paths = [
        f"/v1/models/{rng.choice(['x', 'a%20b', '%00', '../..', triton_name(MODELS[0])])}{end}" for end in ("", "/load")
    ]
    paths += ["/v1/models", "/metrics", "/healthz", "/readyz", "/", f"/v1/models/{triton_name(MODELS[0])}/evict"]
    return over_http(rng, served.settings.controller_port, {"Authorization": bearer} if bearer else {}, paths)


def half_a_request(rng: random.Random, served: Served) -> str:
    """Disconnect in the middle of a request."""
    port = rng.choice([served.settings.http_port, served.settings.grpc_port, served.settings.controller_port])
    start = rng.choice(
        [b"POST /v2/models/x/infer HTTP/1.1\r\nContent-Length: 999\r\n\r\n{", b"PRI * HTTP/2.0\r\n", rng.randbytes(99)]
    )
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(start)
    except OSError as exc:
        return str(exc)
    return ""


def our_client(rng: random.Random, served: Served) -> str:
    """Call SIEClient with anything: it returns a result, or raises an error of the tree."""
    items: Any = rng.choice(
        [None, 5, b"x", [], [None], [{"txt": "a"}], [{"text": 3}], "a", ["a"] * 600, {"text": "\ud800"}]
    )
    options = {"timeout": rng.choice([0.001, 1, PATIENCE_S]), "options": parameters(rng)}
    url = rng.choice([f"http://{served.http}", served.grpc])
    with SIEClient(url) as client:
        try:
            if rng.random() < 0.5:
                client.encode(rng.choice([*MODELS, "no/such", ""]), items, **options)
            else:
                client.score(rng.choice(MODELS), rng.choice(["q", None, {"text": 1}]), items, **options)
        except SIEError as exc:
            return str(exc)
    return ""


Attack = Callable[[random.Random, Served], str]

ATTACKS: list[Attack] = [ensemble, ensemble, step, step, forged, triton_http, controller, half_a_request, our_client]
