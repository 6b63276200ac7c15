"""`sie-triton perf` measures a running server by perf_analyzer."""

import re

import pytest

from tests.conftest import OWL, TINY
from tests.server.test_serve import sie


def test_perf_analyzer_prints_its_table(server):
    load = ["--concurrency-range", "1:4:3", "-p", "100"]  # windows so short that they differ
    process = sie("perf", TINY, f"--grpc-port={server.settings.grpc_port}", *load)
    text, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "Inferences/Second vs. Client Average Batch Latency" in text
    assert "Concurrency: 1, throughput:" in text
    assert "Concurrency: 4, throughput:" in text
    warnings = ("warning: concurrency ", "WARNING: Pass contained only one request")
    assert [line for line in errors.splitlines() if not line.startswith(warnings)] == []


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("test/tinny", r"error: model: test/tinny is not served; served models: test/tiny, .*"),
        (OWL, rf"error: model: {OWL} reads image.*; perf sends texts only"),
    ],
)
def test_perf_refuses_an_unsuitable_model_in_one_line(server, model, said):
    process = sie("perf", model, f"--grpc-port={server.settings.grpc_port}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.fullmatch(said, errors.strip()), errors
