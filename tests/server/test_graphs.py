"""A worker that takes over to a graph while it is asked one short batch after the other.

Here and not among the units, which leave no core to an export that takes only what nobody wants.
"""

import time
from dataclasses import replace

import numpy as np

from sie_triton.engines.onnx.graph import SIZES
from sie_triton.pipeline.worker.graphs import path_of
from sie_triton.pipeline.worker.handle import WorkerHandle
from tests.process.pipeline.worker.test_worker import LIMITS, SMALL, order


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
