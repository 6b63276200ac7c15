"""Work whose stage died after it had deferred the request: Triton never answers it."""

import asyncio
import time
from pathlib import Path

from sie_triton.client.failures import UNHEALTHY
from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Work
from sie_triton.cluster.sidecar.server import Response
from sie_triton.records.calls import CallBook, OpenCall
from tests.support.joined import request
from tests.support.queues import Queue, delivered, runner_of


class Triton:
    """Never answers."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()

    async def call(self, method: str, data: bytes, seconds: float) -> Response:
        self.is_called.set()
        await asyncio.Event().wait()
        raise AssertionError


class Book(CallBook):
    """A book that finds all calls lost at each look, also when their work has ended."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened: list[OpenCall] = []

    def call(self) -> OpenCall:
        self.opened.append(super().call())
        return self.opened[-1]

    def end_lost(self) -> None:
        for call in self.opened:
            call.when_lost()


def queue_after(tmp_path, num_deliveries: int) -> Queue:
    """Return the queue after a sidecar has got work that is lost for the n-th time."""

    async def run() -> Queue:
        queue, triton = Queue(), Triton()
        runner = runner_of(queue, triton, tmp_path, calls=Book(tmp_path), limits=SidecarLimits(report_s=0.0))
        data = Work("g", 1, time.time() + NETWORK_TIMEOUT_S, "org__m").packed(request(b"a").SerializeToString())
        running = runner.start(delivered(data, num_deliveries), "p")
        await triton.is_called.wait()
        reporting = asyncio.create_task(runner.report())
        await running
        await asyncio.sleep(0.01)  # it reports on
        assert not reporting.done()
        reporting.cancel()
        return queue

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_lost_work_goes_back_to_the_queue(tmp_path):
    assert queue_after(tmp_path, 1).of(b"-NAK") == [b'-NAK {"delay": 200000000}']


def test_work_that_is_lost_again_and_again_is_answered(tmp_path):
    """It may be what ends the stage."""
    (answer,) = queue_after(tmp_path, SidecarLimits.max_error_deliveries).answers
    assert "a process of the model died before it answered" in answer.text
    assert UNHEALTHY in answer.text  # clients stop earlier than for a busy server
