"""Triton's gRPC at a gateway: bytes that are no request, or too large a one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway import kserve
from sie_triton.cluster.gateway.kserve import SERVICE, KServe
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.port import Receiving
from sie_triton.cluster.messages import Answer
from sie_triton.doors.memory import MemoryBudget
from sie_triton.settings import read_settings
from tests.support.joined import request


class Aborted(Exception):
    """Raised in place of gRPC's own exception; its arguments are status and text."""


class Call:
    """Stands for grpc.aio.ServicerContext."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self.done = []

    def invocation_metadata(self):
        return ()

    def time_remaining(self):
        return 100.0

    def add_done_callback(self, callback):
        self.done.append(callback)

    async def read(self):
        return self._message

    async def abort(self, status, text):
        raise Aborted(status, text)


@pytest.fixture
def called(tmp_path):
    """Call a method with a message; return what its handler returns."""

    async def model_of(pool: str, name: str) -> str:
        return name if len(name) < 100 else ""

    async def submit(*submitted: Any) -> tuple[Answer, bytes]:
        return Answer(1, "w"), repr(submitted[3]).encode()

    def called(method: str, message: bytes) -> Any:
        async def run() -> Any:
            queue: Any = SimpleNamespace(pools=Pools("p", 1.0), questions=SimpleNamespace(model_of=model_of))
            queue.submit = submit
            memory = MemoryBudget(1 << 30)
            handlers = KServe(read_settings(data_dir=tmp_path), queue, memory, Receiving(1 << 30))
            details: Any = SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=())
            call = Call(message)
            try:
                return await handlers.service(details).stream_unary(None, call)
            finally:
                assert memory.used > 0
                for each in call.done:
                    each(call)
                assert memory.used == 0

        return asyncio.run(run())

    return called


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady"])
def test_bytes_that_are_no_request_are_the_clients_fault(called, method):
    with pytest.raises(Aborted) as told:
        called(method, b"\xff")
    status, text = told.value.args
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert text == f"[input] the request is not a {method}Request of Protocol Buffers"


def test_a_message_of_nothing_but_empty_fields_is_not_parsed(called, monkeypatch):
    """Each would become an object, and 64 MiB of them stop the event loop for seconds."""
    monkeypatch.setattr(kserve, "_parsed", None)
    with pytest.raises(Aborted) as told:
        called("ModelInfer", b"\x2a\x00" * 1001)
    assert told.value.args == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "[input] the request has more than 1000 fields",
    )


def test_inputs_are_not_parsed(called, monkeypatch):
    read: list[bytes] = []
    parsed = kserve._parsed
    monkeypatch.setattr(kserve, "_parsed", lambda kind, data: read.append(data) or parsed(kind, data))
    message = request(b"x" * 100_000, timeout=5_000_000, pages="1-3").SerializeToString()
    assert 0 < float(called("ModelInfer", message)) <= 5
    seen = service_pb2.ModelInferRequest.FromString(*read)
    assert (seen.model_name, sorted(seen.parameters)) == ("m", ["pages", "timeout"])
    assert not seen.inputs
    assert not seen.raw_input_contents


def test_the_name_of_an_unknown_model_is_cut_in_its_error(called):
    with pytest.raises(Aborted) as told:
        called("ModelInfer", request(b"x", model="m" * 100_000).SerializeToString())
    status, text = told.value.args
    assert status == grpc.StatusCode.NOT_FOUND
    assert len(text) < 300


def test_a_question_is_not_parsed_if_it_is_large(called):
    with pytest.raises(Aborted, match="at most 65536 are allowed"):
        called("ModelReady", bytes(65537))
