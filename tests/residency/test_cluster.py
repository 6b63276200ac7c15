"""A cluster of real processes whose parts are killed under load: no answer is wrong, and none is lost."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.ports import free_ports
from tests.conftest import tiny_model_file
from tests.server.test_serve import sie
from tests.support.killing import Clients, of_the_gateway, part
from tests.support.models import save_bert

MODELS = ("t/m0", "t/m1")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def ports() -> list[int]:
    """Ports of the gateway's HTTP and gRPC, and of the config service."""
    return free_ports(3)


@pytest.fixture(scope="module")
def printed() -> list[dict[str, str]]:
    """What `cluster up` prints with --log-json, to which lines are added while it runs."""
    return []


@pytest.fixture(scope="module")
def cluster(
    root: Path, ports: list[int], printed: list[dict[str, str]], minilm_directory: Path
) -> Iterator[tuple[psutil.Process, list[str]]]:
    """`sie-triton cluster up` with two workers."""
    (root / "models").mkdir()
    tiny = save_bert(root / "bert", minilm_directory)
    for model in MODELS:
        (root / "models" / f"{model[2:]}.yaml").write_text(tiny_model_file(model, tiny))
    http, grpc, config = ports
    flags = [f"--models-dir={root / 'models'}", f"--data-dir={root / 'data'}"]
    flags += [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}"]
    process = sie("cluster", "up", *MODELS, *flags, "--workers=2", "--log-json")
    is_ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(json.loads(line))
            if printed[-1]["message"] == "SIE cluster ready":
                is_ready.set()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        assert is_ready.wait(300)
        yield psutil.Process(process.pid), [f"127.0.0.1:{grpc}"]
    finally:
        process.terminate()
        reading.join()
        process.wait()


def test_lines_name_their_worker_and_none_about_cuda_is_an_error(cluster, printed):
    of_triton = [line for line in printed if line["logger"] == "tritonserver"]
    assert {line["worker"] for line in of_triton} == {"worker-0", "worker-1"}
    levels = {line["level"] for line in of_triton if "CUDA" in line["message"] or "Cuda" in line["message"]}
    assert levels == {"INFO"}


def test_each_address_answers(cluster, printed):
    lines = [line["message"] for line in printed if "worker" not in line]
    shown = {line.split()[0]: line for line in lines if re.match(r"(page|config|queue|metrics|worker-[01]) ", line)}
    assert list(shown) == ["page", "config", "queue", "metrics", "worker-0", "worker-1"]
    urls = [f"{httpx.URL(shown[name].split()[1]).join('/readyz')}" for name in ("page", "config")]
    targets = re.findall(r"[\d.]+:\d+", shown["metrics"])
    of_workers = [int(re.findall(r"metrics (\d+)", shown[f"worker-{i}"])[0]) for i in range(2)]
    assert [int(target.split(":")[1]) for target in targets[2:]] == of_workers
    urls += [f"http://{target}/metrics" for target in targets]
    assert [httpx.get(url).status_code for url in urls] == [200] * 6


def test_parts_that_are_killed_cost_no_answer(cluster):
    root, addresses = cluster
    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(50)
        for name in ("config", "sidecar", "nats", "triton", "controller", "launcher"):
            processes = part(name, root)
            assert processes
            for process in processes[:1] if name == "launcher" else processes:  # a Triton ends with its launcher
                process.kill()
                clients.more(60)
            assert (clients.wrong, dict(clients.failures)) == ([], {}), name
    assert (clients.wrong, dict(clients.failures)) == ([], {})


def test_a_gateway_that_is_killed_fails_only_what_it_was_asked(cluster):
    root, addresses = cluster
    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(50)
        (gateway,) = part("gateway", root)
        gateway.kill()
        clients.more(50)
    assert clients.wrong == []
    unexplained = [each for each in clients.failures if not of_the_gateway(each) and "yet; retry" not in each]
    assert unexplained == []


def test_a_sidecar_that_waits_for_the_queue_ends_when_it_is_told(tmp_path: Path):
    nats_port, metrics_port = free_ports(2)
    address = f"--nats-url=nats://127.0.0.1:{nats_port}"
    process = sie("sidecar", address, f"--data-dir={tmp_path}", f"--worker-metrics-port={metrics_port}")
    assert process.stderr is not None
    assert any("queue" in line for line in iter(process.stderr.readline, ""))  # it has tried to connect
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
