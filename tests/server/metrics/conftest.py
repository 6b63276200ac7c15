"""A server and a cluster whose counters, logs and traces are read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.counted_server import Counted, Served, counted_cluster, counted_server


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Iterator[Served]:
    with counted_server(tmp_path_factory.mktemp("metrics"), minilm_directory) as server:
        yield server


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Iterator[Counted]:
    with counted_cluster(tmp_path_factory.mktemp("cluster-metrics"), minilm_directory) as running:
        yield running
