"""Work whose stage died after it had deferred the request: Triton never answers it."""

import asyncio
import time
from types import SimpleNamespace

from sie_triton.client.retry import NETWORK_TIMEOUT_S
from sie_triton.cluster.messages import Work
from sie_triton.cluster.sidecar import runner as module
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.records.calls import CallBook, OpenCall
from tests.support.joined import request
from tests.support.queues import Queue

RECEIPT = "$JS.ACK.s.c.1.1.1.1.0"


class Triton:
    """Never answers."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()

    async def call(self, method: str, data: bytes, seconds: float) -> Response:
        self.is_called.set()
        await asyncio.Event().wait()
        raise AssertionError


class Book(CallBook):
    """A book that finds all calls lost."""

    opened: OpenCall

    def call(self) -> OpenCall:
        self.opened = super().call()
        return self.opened

    def end_lost(self) -> None:
        self.opened.when_lost()


def test_lost_work_goes_back_to_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REPORT_S", 0.0)

    async def run() -> list[tuple[str, bytes]]:
        queue, triton = Queue(), Triton()
        limits = {"target_ms": 50.0, "max_calls": 1, "max_requests": 8}
        runner = Runner(queue, queue, triton, Book(tmp_path), worker="w", payloads=None, **limits)
        data = Work("g", 1, time.time() + NETWORK_TIMEOUT_S, "org__m").packed(request(b"a").SerializeToString())
        running = runner.start(SimpleNamespace(data=data, reply=RECEIPT), "p")
        await triton.is_called.wait()
        reporting = asyncio.create_task(runner.report())
        await running
        reporting.cancel()
        return queue.published

    published = asyncio.run(asyncio.wait_for(run(), 60))
    assert (RECEIPT, b'-NAK {"delay": 200000000}') in published
