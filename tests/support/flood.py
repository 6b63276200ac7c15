"""Endless clients, and the latency of a single request beside them."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sie_triton import SIEClient
from tests.conftest import MINILM, Running


class Flood:
    """Clients in threads of their own that call again and again until told to stop."""

    def __init__(self, calls: list[Callable[[SIEClient], object]], server: Running) -> None:
        self.count = 0
        self.errors: list[Exception] = []
        self.stopped = False
        self._server = server
        self._pool = ThreadPoolExecutor(len(calls))
        self._running = [self._pool.submit(self._run, call) for call in calls]

    def stop(self) -> None:
        self.stopped = True
        self._pool.shutdown()

    def _run(self, call: Callable[[SIEClient], object]) -> None:
        with SIEClient(self._server.grpc) as client:
            while not self.stopped:
                try:
                    call(client)
                    self.count += 1
                except Exception as exc:
                    self.errors.append(exc)
                    return


@contextmanager
def flooding(calls: list[Callable[[SIEClient], object]], server: Running) -> Iterator[Flood]:
    flood = Flood(calls, server)
    time.sleep(0.5)
    try:
        yield flood
    finally:
        flood.stop()


def latencies(client: SIEClient, texts: Sequence[str], seconds: float, model: str = MINILM) -> list[float]:
    """Latencies in seconds of requests of one text each, one after another, for `seconds`."""
    started, taken = time.perf_counter(), []
    while time.perf_counter() - started < seconds:
        taken.append(latency(client, texts[len(taken) % len(texts)], model))
    return taken


def latency(client: SIEClient, text: str, model: str = MINILM) -> float:
    """Latency of one request, in seconds."""
    started = time.perf_counter()
    client.encode(model, text)
    return time.perf_counter() - started
