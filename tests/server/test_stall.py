"""No request is forgotten in a queue. Slow: run with `scripts/test -m slow`."""

import time

import numpy as np
import pytest

from sie_triton import SIEClient
from tests.conftest import TINY

REQUESTS = 6000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sequential_requests_do_not_stall(server):
    """Triton's queue policies make 1 request in 70 wait 500 ms; ours may be slow once in 2,000."""
    seconds = np.empty(REQUESTS)
    with SIEClient(server.grpc) as client:
        client.encode(TINY, "warm up")
        for i in range(REQUESTS):
            started = time.perf_counter()
            client.encode(TINY, "a short text")
            seconds[i] = time.perf_counter() - started
    p50 = np.median(seconds)
    stalled = int((seconds > p50 + 0.1).sum())
    print(f"\n{REQUESTS} requests: p50 {p50 * 1e3:.1f} ms, max {seconds.max() * 1e3:.1f} ms, {stalled} stalled")
    assert stalled <= REQUESTS / 2000
