"""Latency of a small request beside bulk work, of its own model or of another.

Short forms run always and assert what does not depend on the machine's speed; `scripts/test -m slow -s
tests/server/test_bulk.py` runs the long ones, which print and assert latencies.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.pipeline.render.build import write_repository
from sie_triton.pipeline.scheduling.scheduler import MAX_CPU_LANES
from sie_triton.server.companions import fork_servers
from sie_triton.server.launch import Server
from sie_triton.system.host.container import num_processors
from tests.conftest import MINILM, Running, fresh_settings, minilm_file
from tests.support.flood import flooding, latencies, latency
from tests.support.load import percentile, summary

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


def test_one_text_beside_bulk_waits_for_few_sub_batches(server):
    """The test needs no clock: it counts the sub-batches that run meanwhile, of the dozens that are queued."""
    (small,), many = texts(1, seed=1), texts(250)
    passes: list[int] = []
    with SIEClient(server.grpc) as client, flooding([ask_raw(server, MINILM, many)] * 2, server) as flood:
        while len(passes) < 6 or flood.count < 1:
            passes.append(passes_during(server, MINILM, lambda: client.encode(MINILM, small, timeout=60)))
    print(f"\n{passes}")
    assert flood.errors == []
    assert np.median(passes) <= 3 * NUM_LANES
    assert max(passes) <= 10 * NUM_LANES


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
    with fork_servers(settings, ()), Server(settings, root / "model_repository") as running:
        running.wait_ready()
        yield Running(settings, running.pid, running.log.path)
