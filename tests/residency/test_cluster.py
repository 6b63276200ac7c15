"""A cluster of real processes whose parts are killed under load: no answer is wrong, and none is lost."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sie_triton.bench.ports import free_ports
from tests.conftest import tiny_model_file
from tests.server.test_serve import sie
from tests.support.killing import Clients, of_the_gateway, part
from tests.support.models import save_bert

MODELS = ("t/m0", "t/m1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, minilm_directory: Path) -> Iterator[tuple[psutil.Process, list[str]]]:
    """`sie-triton cluster up` with two workers and a second gateway."""
    root = tmp_path_factory.mktemp("cluster")
    (root / "models").mkdir()
    tiny = save_bert(root / "bert", minilm_directory)
    for model in MODELS:
        (root / "models" / f"{model[2:]}.yaml").write_text(tiny_model_file(model, tiny))
    http, grpc = free_ports(2)
    flags = [f"--models-dir={root / 'models'}", f"--data-dir={root / 'data'}", "--no-serve-known"]
    process = sie("cluster", "up", *MODELS, *flags, f"--door-port={http}", f"--grpc-port={grpc}", "--workers=2")
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        assert any(line == "SIE cluster ready\n" for line in lines)
        yield psutil.Process(process.pid), [f"127.0.0.1:{grpc}"]
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("name", ["sidecar", "nats", "triton", "controller", "launcher"])
def test_a_part_that_is_killed_costs_no_answer(cluster, name):
    root, addresses = cluster
    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(100)
        for process in part(name, root):
            process.kill()
            clients.more(100)
    assert (clients.wrong, dict(clients.failures)) == ([], {})


def test_a_gateway_that_is_killed_fails_only_what_it_was_asked(cluster):
    root, addresses = cluster
    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(100)
        (gateway,) = part("gateway", root)
        gateway.kill()
        clients.more(100)
    assert clients.wrong == []
    unexplained = [each for each in clients.failures if not of_the_gateway(each) and "yet; retry" not in each]
    assert unexplained == []


def test_a_queue_that_is_stopped_for_seconds_costs_no_answer(cluster):
    root, addresses = cluster
    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(100)
        (nats,) = part("nats", root)
        nats.send_signal(signal.SIGSTOP)
        time.sleep(4)
        nats.send_signal(signal.SIGCONT)
        clients.more(100)
    assert (clients.wrong, dict(clients.failures)) == ([], {})
