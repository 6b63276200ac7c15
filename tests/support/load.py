"""Load on a server under test: asyncio gRPC, every answer checked.

`python -m tests.support.load ADDRESS SECONDS CLIENTS` is a client process of its own, for those that are to be killed.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name

LONG = pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


@dataclass
class Outcome:
    """Latencies in seconds, by what came of the request."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    wrong: int = 0

    @property
    def total(self) -> int:
        return len(self.answered) + len(self.refused) + len(self.other)


@dataclass(frozen=True)
class Workload:
    """Texts, and the vectors they must give, float32 [n, dim]."""

    model: str
    texts: Sequence[str]
    vectors: np.ndarray


def request(text: str) -> triton.InferInput:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], object))
    return tensor


def messages(workload: Workload, timeout_us: int = 0) -> list[service_pb2.ModelInferRequest]:
    """Return one message per text, made beforehand: a client on the server's cores must need little of them."""
    parameters = {"timeout": service_pb2.InferParameter(int64_param=timeout_us)} if timeout_us else {}
    output = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="dense")
    made = []
    for text in workload.texts:
        raw = text.encode()
        tensor = service_pb2.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        made.append(
            service_pb2.ModelInferRequest(
                model_name=triton_name(workload.model),
                inputs=[tensor],
                outputs=[output],
                parameters=parameters,
                raw_input_contents=[len(raw).to_bytes(4, "little") + raw],
            )
        )
    return made


async def offer(address: str, workload: Workload, per_second: float, seconds: float, timeout_us: int = 0) -> Outcome:
    """Send `per_second` requests for so long, whatever the responses; return when all have returned."""
    outcome, requests = Outcome(), messages(workload, timeout_us)
    gc.collect()
    gc.freeze()  # a collection would take as long as what is measured
    async with grpc.aio.insecure_channel(address) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        started, tasks, sent = time.perf_counter(), set(), 0
        while (elapsed := time.perf_counter() - started) < seconds:
            for _ in range(int(elapsed * per_second) - sent):
                index = sent % len(requests)
                task = asyncio.create_task(send(infer, requests[index], workload.vectors[index], outcome))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
    return outcome


async def saturate(address: str, workload: Workload, clients: int, seconds: float) -> Outcome:
    """Run `clients` clients; each sends its next request when it has the response to the last."""
    outcome, requests, deadline = Outcome(), messages(workload), time.perf_counter() + seconds

    async def loop(infer: Any, start: int) -> None:
        index = start
        while time.perf_counter() < deadline:
            await send(infer, requests[index % len(requests)], workload.vectors[index % len(requests)], outcome)
            index += clients

    async with grpc.aio.insecure_channel(address) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        await asyncio.gather(*(loop(infer, i) for i in range(clients)))
    return outcome


async def send(infer: Any, message: service_pb2.ModelInferRequest, vector: np.ndarray, outcome: Outcome) -> None:
    """Send one request, and record its outcome."""
    started = time.perf_counter()
    try:
        response = await infer(message)
    except grpc.aio.AioRpcError as exc:
        if exc.code() is grpc.StatusCode.UNAVAILABLE:
            outcome.refused.append(time.perf_counter() - started)
        else:
            outcome.other.append(str(exc))
        return
    outcome.answered.append(time.perf_counter() - started)
    (raw,) = response.raw_output_contents
    outcome.wrong += float(np.frombuffer(raw, np.float32) @ vector) < 0.9999


def workload(address: str, model: str, texts: Sequence[str]) -> Workload:
    """Compute the vectors of `texts` before the load begins."""
    with SIEClient(address) as client:
        return Workload(model, texts, np.stack([result["dense"] for result in client.encode(model, texts)]))


def percentile(seconds: Sequence[float], share: float) -> float:
    """Milliseconds.

    >>> percentile([0.001, 0.002, 0.003], 50)
    2.0
    """
    return float(np.percentile(seconds, share) * 1e3)


def summary(seconds: list[float]) -> str:
    return (
        f"p50 {percentile(seconds, 50):.0f}, p99 {percentile(seconds, 99):.0f}, max {percentile(seconds, 100):.0f} ms"
    )


if __name__ == "__main__":
    address, seconds, clients = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    load = workload(address, "sentence-transformers/all-MiniLM-L6-v2", texts(64))
    print("started", flush=True)
    result = asyncio.run(saturate(address, load, clients, seconds))
    print(f"answered {len(result.answered)}, failed {len(result.other)}, wrong {result.wrong}")
