"""Calls abandoned by their clients: some versions of Triton do not survive their end."""

import asyncio
import gc
from types import SimpleNamespace

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sie_triton.client.address import Address
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import NotServed
from sie_triton.client.retry import Deadline
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.triton import TritonBackend
from sie_triton.errors import BusyError
from sie_triton.settings import read_settings


class SlowServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """gRPC server whose answers take 0.1 s."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.told = []

    async def ModelInfer(self, request, context):
        await self._wait()
        return service_pb2.ModelInferResponse()

    async def ModelMetadata(self, request, context):
        await self._wait()
        return service_pb2.ModelMetadataResponse()

    async def _wait(self):
        self.has_begun.set()
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.told.append("cancelled")
            raise
        self.told.append("answered")


@pytest.mark.parametrize(("method", "given"), [("infer", {"inputs": []}), ("get_model_metadata", {})])
@pytest.mark.parametrize(("hangs_up", "told"), [(True, "cancelled"), (False, "answered")])
def test_a_cancelled_call_is_ended_only_where_triton_survives_that(method, given, hangs_up, told):
    async def run() -> list[str]:
        servicer, server = SlowServer(), grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        connection = AsyncConnection(Address.parse(f"grpc://127.0.0.1:{port}"))
        connection.hangs_up = hangs_up
        task = asyncio.create_task(connection.ask(method, Deadline.after(5), model_name="m", **given))
        await servicer.has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()  # gRPC would cancel a call that nothing refers to
        await asyncio.sleep(0.3)
        await connection.close()
        await server.stop(None)
        return servicer.told

    assert asyncio.run(run()) == [told]


@pytest.mark.parametrize(
    ("version", "hangs_up"), [("2.51.0", False), ("2.53.0", False), ("2.54.0", True), ("3.0", True)]
)
def test_tritons_version_is_queried_until_it_answers(tmp_path, version, hangs_up):
    answers = [BusyError("not yet"), SimpleNamespace(version=version)]

    async def ask(method: str):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> bool:
        async with TritonBackend(read_settings(data_dir=tmp_path), DoorLimits(version_poll_s=0.0)) as backend:
            backend.ask = ask
            assert not backend._client._connection.hangs_up
            await asyncio.wait_for(backend._learning, 5)
            return backend._client._connection.hangs_up

    assert asyncio.run(run()) is hangs_up


@pytest.mark.parametrize("step", ["preprocess", "inference", "postprocess"])
def test_the_steps_of_a_model_are_no_models(tmp_path, step):
    """Triton would serve them; a client would pass by the checks of the steps before."""

    async def call_all() -> None:
        model, items = f"org/m-{step}", [{"text": "a"}]
        async with TritonBackend(read_settings(data_dir=tmp_path)) as backend:
            for call in (
                backend.encode(model, items, 5, {}),
                backend.score(model, items[0], items, 5, {}),
                backend.extract(model, items, ["x"], None, 5, {}),
            ):
                with pytest.raises(NotServed, match=f"model: {model} is a step of a model"):
                    await call

    asyncio.run(call_all())
