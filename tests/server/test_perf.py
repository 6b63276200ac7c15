"""`sie-triton perf` measures a running server by perf_analyzer."""

import re

import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
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
        ("test/tinny", r"model: test/tinny is not served; served models: test/tiny, .*"),
        (OWL, rf"model: {OWL} reads image.*; perf sends texts only"),
    ],
)
def test_perf_refuses_an_unsuitable_model_in_one_line(server, model, said):
    done = CliRunner().invoke(cli, ["perf", model, f"--grpc-port={server.settings.grpc_port}"])
    assert re.fullmatch(said, str(done.exception)), done
