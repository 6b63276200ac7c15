"""Work in the queue that no gateway has written: it is put aside, or fails alone."""

import time
from asyncio import gather, run, sleep
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Work
from sie_triton.cluster.sidecar.server import Response
from tests.support.joined import request
from tests.support.queues import Queue, delivered, runner_of

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

    def run_all(*works, heartbeat=None, limits=SidecarLimits()):
        async def check():
            triton = Triton()
            runner = runner_of(queue, triton, tmp_path, limits=limits)
            if heartbeat is not None:
                await runner.gateways.hear_gateway(SimpleNamespace(subject="sie.gateway.g", data=heartbeat))
            await gather(*(runner.start(delivered(data, number=n), "p") for n, data in enumerate(works)))
            return triton.calls

        return run(check())

    return run_all


def work(number=1, deadline=None, model="org__m"):
    return Work("g", number, time.time() + 60 if deadline is None else deadline, model)


def test_work_of_a_model_or_gateway_that_cannot_be_is_dropped_for_good(ran, queue):
    works = [work(model=model) for model in ("a:b", "", "*", "a b", "x" * 10_000)]
    works += [replace(work(), gateway=gateway) for gateway in ("é", "", "*", "a\r\nPUB x 0", "a" * 1000)]
    assert ran(*(each.packed(BODY) for each in works)) == []
    assert [data for _, data in queue.published] == [b"+TERM"] * len(works)


@pytest.mark.parametrize("deadline", [1e300, 2**63])
def test_work_without_an_end_gets_the_longest_time_of_a_request(ran, deadline):
    [(data, seconds)] = ran(work(deadline=deadline).packed(BODY))
    assert service_pb2.ModelInferRequest.FromString(data).parameters["timeout"].int64_param <= NETWORK_TIMEOUT_S * 1e6
    assert seconds < 2 * NETWORK_TIMEOUT_S


@pytest.mark.parametrize("clock", [b"", b"nan", b"inf", "\u0661".encode(), b"x" * 10_000])
def test_a_heartbeat_without_a_clock_changes_no_deadline(ran, clock):
    [(_, seconds)] = ran(work().packed(BODY), heartbeat=clock)
    assert 30 < seconds < 90


def now():
    return b"%.3f" % time.time()


@pytest.mark.parametrize(("is_known", "receipts"), [(False, 1), (True, 0)], ids=["clock unknown", "clock known"])
def test_only_by_its_gateways_clock_a_request_is_late(ran, queue, is_known, receipts):
    heartbeat = now() if is_known else None
    assert ran(work(deadline=time.time() - 60).packed(BODY), heartbeat=heartbeat) == []
    assert len(queue.of(b"-NAK")) == receipts
    assert len(queue.published) == 1


@pytest.mark.parametrize(("gone_s", "receipts"), [(15.0, 1), (-1.0, 0)], ids=["silent", "gone"])
def test_a_request_of_a_silent_gateway_is_not_run_yet(ran, queue, gone_s, receipts):
    """If it was killed, it deletes no request: its answer would be lost, and the request run again and again."""
    limits = SidecarLimits(gateway_silent_s=-1.0, gateway_gone_s=gone_s)
    assert ran(work().packed(BODY), heartbeat=now(), limits=limits) == []
    assert len(queue.of(b"-NAK")) == receipts
    assert len(queue.published) == 1


def test_bytes_that_are_no_request_are_refused_by_triton_alone(ran, queue):
    calls = ran(*(work(number).packed(body) for number, body in enumerate((BODY, b"\xff", b"\xff", BODY))))
    assert len(calls) == 4
    assert [each.status for each in queue.answers] == [3] * 4
