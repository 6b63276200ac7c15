"""Batches form by cost: the sub-batches that run are those of `plan`, with the admission hook and without."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from sie_triton import SIEClient
from sie_triton.pipeline.scheduling.scheduler import Scheduler
from tests.conftest import BUDGET, TINY, TINY_NO_HOOK

TOKENS = 64  # per text, [CLS] and [SEP] included
TEXT = " ".join(["river"] * (TOKENS - 2))
CLIENTS = 64
COUNTERS = ("num_sub_batches", "num_items", "total_cost", "num_requests")


def counted(server, model, work):
    before = server.status(model)
    result = work()
    after = server.status(model)
    return result, {name: after[name] - before[name] for name in COUNTERS}, after


@pytest.mark.parametrize("model", [TINY, TINY_NO_HOOK])
def test_64_clients_never_exceed_the_budget(server, model):
    """The lanes share the budget: no sub-batch exceeds its lane's part."""
    with SIEClient(server.grpc) as client, ThreadPoolExecutor(CLIENTS) as pool:
        client.encode(model, TEXT)

        def work():
            return list(pool.map(lambda _: client.encode(model, TEXT), range(CLIENTS * 8)))

        results, counts, record = counted(server, model, work)
    assert {r["token_count"] for r in results} == {TOKENS}
    assert counts["num_items"] == CLIENTS * 8
    assert counts["total_cost"] == CLIENTS * 8 * TOKENS
    budget = BUDGET // server_lanes()
    assert record["max_sub_batch_cost"] <= budget
    assert counts["num_sub_batches"] >= counts["total_cost"] / budget


def test_batch_counts_match_the_prediction(server):
    """A request of known cost takes exactly as many forward passes as its budget allows."""
    lanes = server_lanes()
    per_sub_batch = BUDGET // lanes // TOKENS
    with SIEClient(server.grpc) as client:
        for num_texts in (per_sub_batch * lanes * 2, per_sub_batch * lanes * 5):
            _, counts, _ = counted(server, TINY, lambda n=num_texts: client.encode(TINY, [TEXT] * n))
            assert counts["num_sub_batches"] == num_texts // per_sub_batch
            assert counts["total_cost"] == num_texts * TOKENS


def test_requests_that_queue_share_forward_passes_as_predicted(server):
    """While a long request holds the device, 64 requests gather; then they run in full sub-batches."""
    per_sub_batch = BUDGET // server_lanes() // TOKENS
    with SIEClient(server.grpc) as client, ThreadPoolExecutor(CLIENTS) as pool:

        def work():
            return list(pool.map(lambda _: client.encode(TINY, TEXT), range(CLIENTS * 16)))

        _, counts, _ = counted(server, TINY, work)
    fewest = CLIENTS * 16 / per_sub_batch
    # Closed-loop clients leave some batches part-filled; one pass a request would be 4 times as many.
    assert fewest <= counts["num_sub_batches"] <= 2.5 * fewest


def server_lanes() -> int:
    scheduler = Scheduler("cpu", lambda _: None, 1)
    scheduler.close()
    return scheduler.num_lanes
