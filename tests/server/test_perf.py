"""`scripts/perf` measures a running server by perf_analyzer."""

import re
import subprocess
import sys

import pytest

from tests.conftest import OWL, TINY


def measured(server, model: str, *load: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.perf_analyzer", model, f"--grpc-port={server.settings.grpc_port}"]
    return subprocess.run([*command, *load], capture_output=True, text=True, timeout=200)


def test_perf_analyzer_prints_its_table(server):
    done = measured(server, TINY, "--concurrency-range", "1:4:3", "-p", "100")  # windows so short that they differ
    assert done.returncode == 0, done.stderr
    assert "Inferences/Second vs. Client Average Batch Latency" in done.stdout
    assert "Concurrency: 1, throughput:" in done.stdout
    assert "Concurrency: 4, throughput:" in done.stdout
    warnings = ("warning: concurrency ", "WARNING: Pass contained only one request")
    assert [line for line in done.stderr.splitlines() if not line.startswith(warnings)] == []


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("test/tinny", r"Error: model: test/tinny is not served; served models: test/tiny, .*\n"),
        (OWL, rf"Error: model: {OWL} reads image.*; perf sends texts only\n"),
    ],
)
def test_perf_refuses_an_unsuitable_model_in_one_line(server, model, said):
    done = measured(server, model)
    assert done.returncode == 1
    assert re.fullmatch(said, done.stderr), done.stderr
