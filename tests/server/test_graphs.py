"""A worker, and a server, that take over to a graph while a client asks them one short text after the other.

Here and not among the units, which leave no core to an export that takes only what nobody wants.
`scripts/test -m slow -s tests/server/test_graphs.py` takes minutes, and prints figures.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.latency import MODEL
from benchmarks.library_comparison import MINILM, dense_file, grpc_of, serving
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.engines.onnx.graph import SIZES
from sie_triton.pipeline.worker.graphs import path_of
from sie_triton.pipeline.worker.handle import WorkerHandle
from sie_triton.records.status import records_of
from sie_triton.server.companions import controller
from tests.process.pipeline.worker.test_worker import LIMITS, SMALL, order
from tests.support.load import percentile

WARM_UP, BEFORE, AFTER = 50, 300, 300
TAKEOVER_S = 240

# Beside an export that has what nobody wants of the cores.
TIMES_SLOWER = 2.0


def slow(test):
    return pytest.mark.slow(pytest.mark.timeout(900)(test))


def test_a_worker_makes_its_graph_once_and_keeps_it(server, tiny_directory, tmp_path):
    """A process of its own makes the graph while passes go on, and the next worker opens it without one."""
    directories = {"measurements_dir": tmp_path / "measurements", "graphs_dir": tmp_path / "graphs"}
    load = replace(order(tiny_directory, server.settings.status_dir), **directories, makes_graphs=True)
    before, after = [quickened_worker(load) for _ in range(2)]
    np.testing.assert_allclose(before, after, atol=1e-5)
    assert not list(load.graphs.parent.glob("making-*"))


def quickened_worker(load):
    """Return the vectors of SMALL by the graph, once a worker has taken it."""
    made, news = path_of(load.graphs, ""), []
    existed = made.exists() and made.stat().st_mtime_ns
    worker = WorkerHandle(load, lambda worker: None, **LIMITS, quickened=news.append)
    try:
        first = worker.forward(SMALL, 1)["dense"]
        while not news:
            rows = worker.forward(SMALL, 1)["dense"]
            time.sleep(0.05)
        np.testing.assert_allclose(first, rows, atol=1e-5)
    finally:
        worker.close()
    assert news[0].max_tokens in SIZES
    assert made.stat().st_mtime_ns == (existed or made.stat().st_mtime_ns)
    return rows


@slow
def test_requests_succeed_while_the_graph_takes_over(tmp_path, reference):
    with running(tmp_path, "auto") as (settings, client):
        for _ in range(WARM_UP):
            client.encode(MODEL, "time")
        during, answers = [], []
        ended = time.monotonic() + TAKEOVER_S
        while time.monotonic() < ended and not graph_tokens(settings):
            during.append(seconds(client, answers))
        taken = graph_tokens(settings)
        assert taken, "no graph was taken"
        after = [seconds(client, answers) for _ in range(AFTER)]
        known = ask(settings, "/v1/models")["models"]
    with running(tmp_path, "torch") as (_, client):
        for _ in range(WARM_UP):
            client.encode(MODEL, "time")
        before = [seconds(client, answers) for _ in range(BEFORE)]
    (expected,) = reference(["time"])
    np.testing.assert_allclose(np.stack(answers), np.broadcast_to(expected, (len(answers), 384)), atol=1e-5)
    assert [(each["engine"], each["graph_tokens"]) for each in known] == [("torch", taken)]
    told = {"PyTorch alone": before, "while it is made": during, f"by the graph, up to {taken} tokens": after}
    for name, each in told.items():
        p50, p99 = (percentile(each, q) for q in (50, 99))
        print(f"{name}: {len(each)} requests, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    assert percentile(during, 99) <= TIMES_SLOWER * percentile(before, 99)
    assert np.median(after) < np.median(before)


@slow
def test_engine_auto_does_not_delay_the_first_response(tmp_path):
    """The measurements are cold, each on a new server with earlier calibration; medians of alternating runs."""
    firsts = {"auto": [], "torch": []}
    for _ in range(4):
        for engine, found in firsts.items():
            with running(tmp_path, engine, warm=False) as (_, client):
                found.append(seconds(client, []))
                for _ in range(WARM_UP):
                    client.encode(MODEL, "time")
    told = {engine: float(np.median(found[1:])) for engine, found in firsts.items()}
    print({engine: f"{1000 * each:.0f} ms" for engine, each in told.items()})
    assert told["auto"] <= 1.15 * told["torch"]


@contextmanager
def running(scratch: Path, engine: str, *, warm: bool = True) -> Iterator[tuple]:
    """Run a server whose data directory belongs to its engine, and stays."""
    place = scratch / f"{engine}-{time.monotonic_ns()}"
    with ExitStack() as stack:
        given = {"engine": engine, "data_dir": scratch / engine}
        settings = stack.enter_context(serving(place, MODEL, dense_file(MINILM, 384), **given))
        stack.enter_context(controller(settings, ""))
        client = stack.enter_context(SIEClient(grpc_of(settings)))
        if warm:
            client.encode(MODEL, "time")
        yield settings, client


def seconds(client: SIEClient, answers: list) -> float:
    started = time.perf_counter()
    answers.append(client.encode(MODEL, "time")["dense"])
    return time.perf_counter() - started


def graph_tokens(settings) -> int:
    (record,) = records_of(settings.status_dir, triton_name(MODEL), "inference")
    return record["graph_tokens"]
