"""Work in the queue that no gateway has written: it is put aside, or fails alone."""

import time
from asyncio import gather, run, sleep
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.records.calls import CallBook
from tests.support.joined import request
from tests.support.queues import Queue

BODY = request(b"a").SerializeToString()


class Triton:
    """Refuses what is no request, as Triton does."""

    def __init__(self) -> None:
        self.calls = []

    async def call(self, method, data, seconds):
        await sleep(0)
        self.calls.append((data, seconds))
        return Response(3, "not a request", b"")


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def ran(tmp_path, queue):
    """Function that runs works in one sidecar at once, and returns the calls of its Triton."""

    def run_all(*works, heartbeat=None):
        async def check():
            triton = Triton()
            limits = {"quantum": Quantum(50.0), "coalesce_ms": 0.0, "max_calls": 1, "max_requests": 8}
            calls, receipts = CallBook(tmp_path), Receipts(tmp_path)
            runner = Runner(queue, queue, triton, calls, receipts, worker="w", payloads=None, **limits)
            if heartbeat is not None:
                await runner.gateways.hear_gateway(SimpleNamespace(subject="sie.gateway.g", data=heartbeat))
            messages = [SimpleNamespace(data=data, reply=f"$JS.ACK.s.c.1.{n}.1.1.0") for n, data in enumerate(works)]
            await gather(*(runner.start(each, "p") for each in messages))
            return triton.calls

        return run(check())

    return run_all


def work(number=1, deadline=None, model="org__m"):
    return Work("g", number, time.time() + 60 if deadline is None else deadline, model)


@pytest.mark.parametrize("model", ["a:b", "", "*", "a b", "x" * 10_000])
def test_work_of_a_model_that_cannot_be_is_dropped_for_good(ran, queue, model):
    assert ran(work(model=model).packed(BODY)) == []
    assert [data for _, data in queue.published] == [b"+TERM"]


@pytest.mark.parametrize("gateway", ["é", "", "a b", "*", ">", "a\r\nPUB x 0", "a" * 1000])
def test_work_of_a_gateway_that_cannot_be_is_dropped_for_good(ran, queue, gateway):
    assert ran(Work(gateway, 1, time.time() + 60, "org__m").packed(BODY)) == []
    assert [data for _, data in queue.published] == [b"+TERM"]


@pytest.mark.parametrize("deadline", [1e300, 2**63, 9e18])
def test_work_without_an_end_gets_the_longest_time_of_a_request(ran, deadline):
    [(data, seconds)] = ran(work(deadline=deadline).packed(BODY))
    assert service_pb2.ModelInferRequest.FromString(data).parameters["timeout"].int64_param <= NETWORK_TIMEOUT_S * 1e6
    assert seconds < 2 * NETWORK_TIMEOUT_S


@pytest.mark.parametrize("clock", [b"", b"nan", b"inf", b"-1e999", b"g", "\u0661".encode(), b"x" * 10_000])
def test_a_heartbeat_without_a_clock_changes_no_deadline(ran, clock):
    [(_, seconds)] = ran(work().packed(BODY), heartbeat=clock)
    assert 30 < seconds < 90


def test_bytes_that_are_no_request_are_refused_by_triton_alone(ran, queue):
    calls = ran(*(work(number).packed(body) for number, body in enumerate((BODY, b"\xff", b"\xff", BODY))))
    assert len(calls) == 4
    answers = [Answer.read(data)[0] for subject, data in queue.published if not subject.startswith("$JS")]
    assert [each.status for each in answers] == [3] * 4
