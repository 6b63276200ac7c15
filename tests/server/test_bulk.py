"""One-text requests beside a 5,000-text request. Slow: run with `scripts/test -m slow -s`."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.bench.workload import texts
from sie_triton.spec import CPU_ADMISSION_COST
from tests.conftest import MINILM


def latency(client: SIEClient, text: str) -> float:
    started = time.perf_counter()
    client.encode(MINILM, text)
    return 1000 * (time.perf_counter() - started)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_small_requests_beside_bulk_wait_for_one_sub_batch_at_most(server):
    small, many = texts(200, seed=1), texts(5000)
    with SIEClient(server.grpc) as client, SIEClient(server.grpc) as other, ThreadPoolExecutor(1) as pool:
        client.encode(MINILM, small[:8])
        sub_batch_ms = max(one_sub_batch_ms(client) for _ in range(5))
        alone = [latency(other, text) for text in small]
        bulk = pool.submit(client.encode, MINILM, many)
        time.sleep(0.5)
        beside = []
        while not bulk.done():
            beside.append(latency(other, small[len(beside) % len(small)]))
        num_done = len(bulk.result())
    p99_alone, p99_beside = np.percentile(alone, 99), np.percentile(beside, 99)
    print(f"\none text alone: p50 {np.median(alone):.0f} ms, p99 {p99_alone:.0f} ms")
    print(f"beside {num_done} texts: p50 {np.median(beside):.0f} ms, p99 {p99_beside:.0f} ms, {len(beside)} requests")
    print(f"one sub-batch: {sub_batch_ms:.0f} ms")
    assert p99_beside <= p99_alone + sub_batch_ms


def one_sub_batch_ms(client: SIEClient) -> float:
    """The forward time of as much as runs at once."""
    chosen, room = [], CPU_ADMISSION_COST
    for text in texts(100, seed=2):
        room -= len(text.split()) + 2
        if room < 0:
            break
        chosen.append(text)
    return client.encode(MINILM, chosen)[0]["timing"]["inference_ms"]
