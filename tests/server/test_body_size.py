"""The table of limits in docs/operating.md: what tritonserver answers, and what ends it (-m slow -s prints it)."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.grpc as triton

from sie_triton.contract.names import triton_name
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server import launch
from sie_triton.server.launch import Server, answers
from sie_triton.settings import Settings
from tests.conftest import TINY, fresh_settings, tiny_model_file

MB = 1_000_000
PATH = f"/v2/models/{triton_name(TINY)}/infer"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
REFUSED = {"dimensions": 0}  # after the whole body has been read and handed on, before anything is computed
USUAL = 8 * 1024**2


@dataclass(frozen=True)
class Tiny:
    """A server with one small model, perhaps among others."""

    settings: Settings

    def post(self, body: bytes, headers: dict[str, str]) -> int:
        """Return the HTTP status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.settings.http_port, timeout=280)
        connection.request("POST", PATH, body=body, headers=headers)
        return connection.getresponse().status

    def answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.post(request("hello"), JSON) == 200
        return False


@pytest.fixture
def tiny(tmp_path, tiny_directory) -> Tiny:
    """Return a server of its own, which `serving` starts."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.yaml").write_text(tiny_model_file(TINY, tiny_directory))
    return Tiny(fresh_settings(tmp_path, models_dir=tmp_path / "models"))


@contextmanager
def serving(tiny: Tiny) -> Iterator[Server]:
    repository = tiny.settings.data_dir / "model_repository"
    write_repository(repository, tiny.settings, [TINY], runtime=tiny.settings.runtime)
    with Server(tiny.settings, repository) as server:
        server.wait_ready()
        yield server


def request(text: str, **parameters: int) -> bytes:
    inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]
    return json.dumps({"inputs": inputs, "outputs": [{"name": "dense"}], "parameters": parameters}).encode()


def form(tiny: Tiny, size: int) -> object:
    return tiny.post(b"a" * size, FORM)


def plain_json(tiny: Tiny, size: int) -> object:
    return tiny.post(request("a" * size, **REFUSED), JSON)


def no_type(tiny: Tiny, size: int) -> object:
    return tiny.post(request("a" * size, **REFUSED), {})


def brackets(tiny: Tiny, size: int) -> object:
    return tiny.post(b"[" * size, JSON)


def chunks(tiny: Tiny, size: int) -> object:
    """A body of `size` pieces of one byte each."""
    with socket.create_connection(("127.0.0.1", tiny.settings.http_port), timeout=280) as connection:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode() + b"1\r\n \r\n" * size + b"0\r\n\r\n")
        return connection.recv(100).split()[1]


def binary(tiny: Tiny, size: int) -> object:
    inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size + 4}}]
    head = json.dumps({"inputs": inputs, "parameters": REFUSED}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return tiny.post(head + size.to_bytes(4, "little") + b"a" * size, headers)


def grpc(tiny: Tiny, size: int) -> object:
    text = triton.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"a" * size], object))
    with triton.InferenceServerClient(f"127.0.0.1:{tiny.settings.grpc_port}") as client:
        try:
            return client.infer(triton_name(TINY), [text], parameters=REFUSED)
        except triton.InferenceServerException as exc:
            return exc.status()


def one_text(tiny: Tiny, size: int) -> object:
    return tiny.post(request("word " * (size // 5)), JSON)


Send = Callable[[Tiny, int], object]
ANSWERED: list[tuple[Send, int, object]] = [
    (form, 22 * MB, 500),
    (form, 400 * MB, 500),
    (brackets, 10 * MB, 500),
    (chunks, 600_000, b"500"),
    (plain_json, 22 * MB, 400),
    (plain_json, 500 * MB, 400),
    (no_type, 500 * MB, 400),
    (binary, 500 * MB, 400),
    (grpc, 500 * MB, "StatusCode.INVALID_ARGUMENT"),
    (one_text, 22 * MB, 200),
]
DEADLY = [(form, 600 * MB, launch.STACK_BYTES), (brackets, 60 * MB, launch.STACK_BYTES)]
DEADLY += [(form, 9 * MB // 2, USUAL), (brackets, 200_000, USUAL), (chunks, 600_000, USUAL)]


def say(send: Send, size: int, outcome: str) -> None:
    print(f"| {send.__name__} | {size:,} | {outcome} |")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_large_bodies_are_answered(tiny):
    with serving(tiny):
        for send, size, expected in ANSWERED:
            answer = send(tiny, size)
            say(send, size, f"answered: {answer}")
            assert answer == expected, send.__name__
            assert tiny.answers()


@pytest.mark.slow
@pytest.mark.parametrize(("send", "size", "stack_bytes"), DEADLY)
def test_larger_requests_would_end_tritonserver(tiny, monkeypatch, send, size, stack_bytes):
    """The limits are exact: if one of these requests is answered, the table is too pessimistic."""
    monkeypatch.setattr(launch, "STACK_BYTES", stack_bytes)
    with serving(tiny) as server:
        with suppress(OSError, http.client.HTTPException, IndexError):
            send(tiny, size)
        assert "SIGSEGV" in server.wait()
        say(send, size, f"ended it, with a stack of {stack_bytes // 1024**2} MB")


def test_bodies_that_would_overflow_a_small_stack_get_status_500(server):
    """A few megabytes that would end a tritonserver started otherwise, which is shown above."""
    for send, size in ((form, 9 * MB // 2), (brackets, 200_000), (chunks, 600_000)):
        assert send(Tiny(server.settings), size) in (500, b"500"), send.__name__
        assert answers(f"http://127.0.0.1:{server.settings.http_port}/v2/health/live")
