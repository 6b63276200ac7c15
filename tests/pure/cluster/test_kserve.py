"""Triton's gRPC at a gateway: bytes that are no request."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from sie_triton.cluster.gateway.kserve import SERVICE, KServe
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.doors.memory import MemoryBudget
from sie_triton.settings import read_settings


class Aborted(Exception):
    """Raised in place of gRPC's own exception; its arguments are status and text."""


class Call:
    """Stands for grpc.aio.ServicerContext."""

    def invocation_metadata(self):
        return ()

    async def abort(self, status, text):
        raise Aborted(status, text)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady"])
def test_bytes_that_are_no_request_are_the_clients_fault(tmp_path, method):
    queue = SimpleNamespace(pools=Pools("p"))
    handlers = KServe(read_settings(data_dir=tmp_path), queue, MemoryBudget(1 << 20))
    handler = handlers.service(SimpleNamespace(method=f"/{SERVICE}/{method}")).unary_unary
    with pytest.raises(Aborted) as told:
        asyncio.run(handler(b"\xff", Call()))
    status, text = told.value.args
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert text == f"[input] the request is not a {method}Request of Protocol Buffers"
