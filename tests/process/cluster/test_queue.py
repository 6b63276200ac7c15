"""A request through gateway, queue and sidecar: the answer of Triton, and what the stages get."""

import asyncio

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.requests import COPIES
from sie_triton.cluster.sidecar.server import Response
from sie_triton.doors.failures import Failure
from sie_triton.doors.memory import MemoryBudget
from sie_triton.errors import Unreachable
from tests.process.cluster.conftest import (
    MODEL,
    OTHER,
    asked,
    in_cluster,
    request,
    served,
    until_empty,
)


@in_cluster()
async def test_a_request_is_charged_with_the_copies_that_the_queue_makes(cluster):
    queue, _, triton = await cluster.pair()
    num_bytes = COPIES * len(request("a" * 100))
    with MemoryBudget(num_bytes - 1).held(), pytest.raises(Failure, match="use all the memory"):
        await asked(queue, "a" * 100)
    assert triton.seen == []
    with MemoryBudget(10 * num_bytes).held() as held:
        await asked(queue, "a" * 100)
        assert held.num_bytes > num_bytes  # with its answer


@in_cluster()
async def test_many_requests_of_two_gateways_each_get_their_own_answer(cluster):
    queues = [await cluster.gateway() for _ in range(2)]
    workers = [await cluster.worker(name) for name in ("w0", "w1", "w2")]
    for queue in queues:
        await served(queue, 3)
    names = [f"{i}" for i in range(300)]
    answers = await asyncio.gather(
        *(asked(queues[i % 2], name, (MODEL, OTHER)[i % 3 % 2]) for i, name in enumerate(names))
    )
    assert answers == names
    assert sorted(each for _, triton in workers for each in triton.seen) == sorted(names)
    await until_empty(queues[0])


@in_cluster()
async def test_the_stages_get_the_time_that_is_left(cluster):
    queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
    timeouts = []

    async def call(method: str, data: bytes, seconds: float) -> Response:
        message = service_pb2.ModelInferRequest.FromString(data)
        timeouts.append(message.parameters["timeout"].int64_param / 1e6)
        return Response(0, "", service_pb2.ModelInferResponse().SerializeToString())

    triton.call = call
    await served(queue)
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.parameters["timeout"].int64_param = 7_000_000
    await queue.submit("default", MODEL, message.SerializeToString(), 30)
    assert 20 < timeouts[0] <= 30


@in_cluster()
async def test_questions_are_answered_by_any_worker(cluster):
    queue = await cluster.gateway()
    with pytest.raises(Unreachable, match="no worker of pool default"):
        await queue.questions.ask("default", "ServerMetadata", b"", 1)
    await cluster.worker("w")
    await served(queue)
    answer, body = await queue.questions.ask("default", "ServerMetadata", b"", 5)
    assert (answer.worker, body) == ("w", b"ServerMetadata of w")
