"""Work whose stage died after it had deferred the request: Triton never answers it."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

from sie_triton.client.failures import UNHEALTHY
from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.cluster.sidecar import runner as module
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.runner import MAX_DELIVERIES_OF_AN_ERROR, Runner
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.records.calls import CallBook, OpenCall
from tests.support.joined import request
from tests.support.queues import Queue


def receipt(num_deliveries: int) -> str:
    return f"$JS.ACK.s.c.{num_deliveries}.1.1.1.0"


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


def published(tmp_path, monkeypatch, num_deliveries: int) -> list[tuple[str, bytes]]:
    """Return what a sidecar publishes about lost work that it has got for the n-th time."""
    monkeypatch.setattr(module, "REPORT_S", 0.0)

    async def run() -> list[tuple[str, bytes]]:
        queue, triton = Queue(), Triton()
        limits = {"quantum": Quantum(50.0), "coalesce_ms": 0.0, "max_calls": 1, "max_requests": 8}
        book, receipts = Book(tmp_path), Receipts(tmp_path)
        runner = Runner(queue, queue, triton, book, receipts, worker="w", payloads=None, **limits)
        data = Work("g", 1, time.time() + NETWORK_TIMEOUT_S, "org__m").packed(request(b"a").SerializeToString())
        running = runner.start(SimpleNamespace(data=data, reply=receipt(num_deliveries)), "p")
        await triton.is_called.wait()
        reporting = asyncio.create_task(runner.report())
        await running
        await asyncio.sleep(0.01)  # it reports on
        assert not reporting.done()
        reporting.cancel()
        return queue.published

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_lost_work_goes_back_to_the_queue(tmp_path, monkeypatch):
    assert (receipt(1), b'-NAK {"delay": 200000000}') in published(tmp_path, monkeypatch, 1)


def test_work_that_is_lost_again_and_again_is_answered(tmp_path, monkeypatch):
    """It may be what ends the stage."""
    told = published(tmp_path, monkeypatch, MAX_DELIVERIES_OF_AN_ERROR)
    (answer,) = (Answer.read(data)[0] for subject, data in told if not subject.startswith("$JS"))
    assert "a process of the model died before it answered" in answer.text
    assert UNHEALTHY in answer.text  # clients stop earlier than for a busy server
