"""Latency of a small request beside bulk work, of its own model or of another.

Short forms run always and assert what does not depend on the machine's speed; `scripts/test -m slow -s
tests/server/test_bulk.py` runs the long ones, which print and assert latencies.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from benchmarks.texts import log_normal_texts
from sie_triton import SIEClient
from sie_triton.cli.perf.workload import texts
from sie_triton.contract.names import triton_name
from sie_triton.pipeline.render.build import write_repository
from sie_triton.pipeline.scheduling.scheduler import MAX_CPU_LANES
from sie_triton.server.companions import fork_server
from sie_triton.server.launch import Server
from sie_triton.system.host.container import num_processors
from tests.conftest import GLINER, MINILM, MINILM_512, Running, fresh_settings, minilm_file
from tests.support.flood import flooding, latencies, latency
from tests.support.gliners import LABELS
from tests.support.load import LONG, percentile, summary

NUM_LANES = min(MAX_CPU_LANES, num_processors())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_text_beside_endless_bulk_waits_for_two_sub_batches_at_most(server, tmp_path):
    alone, beside, sub_batch_ms = beside_bulk(server, texts_a_request=10_000, seconds=60)
    print(f"\nalone {summary(alone)}; sub-batch {sub_batch_ms:.0f} ms")
    print(f"beside two clients of 10,000 texts {summary(beside)}")
    # Negative control: each bulk request is one piece of work.
    with undivided(tmp_path) as other:
        _, control, _ = beside_bulk(other, texts_a_request=2_000, seconds=60)
    print(f"undivided, 2,000 texts: {summary(control)}")
    assert percentile(beside, 99) <= percentile(alone, 99) + 2 * sub_batch_ms
    assert percentile(control, 99) > 3 * percentile(beside, 99)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_text_beside_endless_extraction_by_another_model(server):
    small = texts(200, seed=1)
    bulk = log_normal_texts(400, seed=2)
    with SIEClient(server.grpc) as client:
        client.encode(MINILM, small)
        client.extract(GLINER, bulk[:8], LABELS, threshold=0.9)
        alone = [latency(client, text) for text in small]
        with flooding([lambda c: c.extract(GLINER, bulk, LABELS, threshold=0.9)] * 2, server) as flood:
            before = server.status(GLINER)
            beside = latencies(client, small, seconds=60)
            sub_batch_ms = pass_ms(before, server.status(GLINER), 60)
    print(f"\nalone {summary(alone)}; sub-batch of the other {sub_batch_ms:.0f} ms")
    print(f"beside {flood.count} requests of {len(bulk)} texts to extract from {summary(beside)}")
    assert flood.errors == []
    assert flood.count > 2
    assert percentile(beside, 99) <= percentile(alone, 99) + 2 * sub_batch_ms


def test_one_text_beside_bulk_waits_for_few_sub_batches(server):
    """The test needs no clock: it counts the sub-batches that run meanwhile, of the dozens that are queued."""
    (small,), many = texts(1, seed=1), texts(250)
    passes: list[int] = []
    with SIEClient(server.grpc) as client, flooding([ask_raw(server, MINILM, many)] * 2, server) as flood:
        while len(passes) < 10 or flood.count < 1:
            passes.append(passes_during(server, MINILM, lambda: client.encode(MINILM, small, timeout=60)))
    print(f"\n{passes}")
    assert flood.errors == []
    assert np.median(passes) <= 3 * NUM_LANES
    assert max(passes) <= 10 * NUM_LANES


@pytest.mark.parametrize("seconds", [3, LONG])
def test_one_long_text_beside_a_flood_of_short_ones(server, seconds):
    """First come, first served would make the request wait for the whole queued flood, 16 sub-batches."""
    long_text, short, num_clients = texts(1, 400, 400)[0], texts(60, 15, 15), 16 if seconds < 60 else 8
    with SIEClient(server.grpc) as client:
        client.encode(MINILM_512, long_text)
        alone = [latency(client, long_text, MINILM_512) for _ in range(20)]
        with flooding([lambda c: c.encode(MINILM_512, short)] * num_clients, server) as flood:
            before, started, beside, passes = server.status(MINILM_512), time.perf_counter(), [], []
            while not flood.errors and (time.perf_counter() < started + seconds or flood.count <= num_clients):
                work = lambda: beside.append(latency(client, long_text, MINILM_512))  # noqa: E731
                passes.append(passes_during(server, MINILM_512, work))
            sub_batch_ms = pass_ms(before, server.status(MINILM_512), time.perf_counter() - started)
    print(f"\nalone {summary(alone)}; sub-batch {sub_batch_ms:.0f} ms")
    print(
        f"beside {flood.count} requests of {len(short)} short texts {summary(beside)}; sub-batches meanwhile {passes}"
    )
    assert flood.errors == []
    assert np.median(passes) <= 3 * NUM_LANES
    if seconds >= 60:
        assert percentile(beside, 50) <= 3 * percentile(alone, 50) + sub_batch_ms


def beside_bulk(server: Running, texts_a_request: int, seconds: float) -> tuple[list[float], list[float], float]:
    """Latencies of one text at a time alone, then beside two endless bulk clients; ms of one sub-batch."""
    small, bulk = texts(200, seed=1), ask_raw(server, MINILM, texts(texts_a_request))
    with SIEClient(server.grpc) as client:
        client.encode(MINILM, small)
        alone = [latency(client, text) for text in small]
        before = server.status(MINILM)
        with flooding([bulk] * 2, server) as flood:
            beside = latencies(client, small, seconds)
            after = server.status(MINILM)
        assert flood.errors == []
    # The single texts are passes of their own.
    return (
        alone,
        beside,
        pass_ms({**before, "num_sub_batches": before["num_sub_batches"] + len(beside)}, after, seconds),
    )


def ask_raw(server: Running, model: str, many: list[str]) -> Callable[[SIEClient], None]:
    """Send all of `many` in one request, which SIEClient would split."""
    bulk = triton.InferInput("text", [len(many)], "BYTES")
    bulk.set_data_from_numpy(np.array([text.encode() for text in many], object))

    def call(_: SIEClient) -> None:
        with triton.InferenceServerClient(server.grpc) as raw:
            raw.infer(triton_name(model), [bulk])

    return call


def passes_during(server: Running, model: str, work: Callable[[], object]) -> int:
    """Return the number of sub-batches that ended while `work` ran."""
    before = server.status(model)["num_sub_batches"]
    work()
    return server.status(model)["num_sub_batches"] - before


def pass_ms(before: dict[str, int], after: dict[str, int], seconds: float) -> float:
    """Mean time of a forward pass in milliseconds, if all lanes were busy all the time."""
    return NUM_LANES * seconds * 1e3 / max(1, after["num_sub_batches"] - before["num_sub_batches"])


@contextmanager
def undivided(root: Path) -> Iterator[Running]:
    """A server whose sub-batches hold a whole bulk request."""
    settings = fresh_settings(root, max_sub_batch_cost=10_000_000, models_dir=root)
    (root / "minilm.yaml").write_text(minilm_file(MINILM, 256, 10_000_000))
    write_repository(root / "model_repository", settings, [MINILM], runtime=settings.runtime)
    with fork_server(settings), Server(settings, root / "model_repository") as running:
        running.wait_ready()
        yield Running(settings, running.pid, running.log_path)
