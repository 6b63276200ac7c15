"""A cluster of real processes whose parts are killed under load: no answer is wrong, and none is lost."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from benchmarks.ports import free_ports
from sie_triton.records.status import records_of_revisions
from tests.conftest import tiny_model_file
from tests.server.test_serve import sie
from tests.support.controller import wait_for
from tests.support.killing import Clients, of_the_gateway, part, vector
from tests.support.models import save_bert

MODELS = ("t/m0", "t/m1")

# A model that workers know, and serve once a request names it.
KNOWN = "t/known"

# A model whose request runs for seconds, so that its Triton can be killed meanwhile.
FATAL = "t/fatal"


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
    for model in (KNOWN, FATAL):
        (root / "models" / f"{model[2:]}.yaml").write_text(tiny_model_file(model, tiny))
    flags = [f"--models-dir={root / 'models'}", f"--data-dir={root / 'data'}"]
    flags += [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}"]
    process = sie("cluster", "up", *MODELS, FATAL, *flags, "--workers=2", "--log-json")
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


def test_a_request_that_ends_two_tritons_is_put_aside_and_costs_no_other_answer(cluster, root: Path):
    _, addresses = cluster
    texts = np.array(["word " * 200] * 3000, object)

    def ask() -> str:
        tensor = triton.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(texts)
        with triton.InferenceServerClient(addresses[0]) as client:
            try:
                client.infer("t__fatal", [tensor], client_timeout=120)
            except InferenceServerException as exc:
                return str(exc)
        return "answered"

    killed: list[int] = []

    def kill_where_it_runs() -> bool:
        for status_dir in root.glob("data/cluster/worker-*/status"):
            for _, record in records_of_revisions(status_dir, "t__fatal", "inference"):
                if record["busy_since_ns"] and (pid := int(record["triton_pid"])) not in killed:
                    killed.append(pid)
                    psutil.Process(pid).kill()
                    return True
        return False

    with Clients(addresses, ["t__m0", "t__m1"]) as clients, ThreadPoolExecutor(1) as thread:
        clients.more(100)
        answer = thread.submit(ask)
        for _ in range(2):
            wait_for(kill_where_it_runs)
        assert "ended the server that ran it, twice" in answer.result(120)
        clients.more(50)
    assert (clients.wrong, dict(clients.failures)) == ([], {})
    (log,) = [log for log in root.glob("data/cluster/worker-*/logs/sidecar.log") if "SIE_DEAD" in log.read_text()]
    assert "t__fatal ended two Tritons" in log.read_text()


def done(*arguments: str) -> str:
    """Return what a command prints."""
    process = sie(*arguments)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out


def test_a_model_file_comes_to_all_workers_and_is_replaced_without_a_failed_request(
    cluster, root: Path, ports: list[int], minilm_directory: Path
):
    _, addresses = cluster
    http, _, config = ports
    of_config = [f"--config-port={config}", f"--data-dir={root / 'data'}"]
    new, gateway = root / "new.yaml", f"http://127.0.0.1:{http}"

    def add(directory: Path) -> str:
        new.write_text(tiny_model_file("t/new", directory))
        return done("cluster", "add", str(new), *of_config)

    def dense() -> list[float] | None:
        answer = httpx.post(f"{gateway}/v1/encode/t/new", json={"items": [{"text": "a"}]}, timeout=60)
        return answer.json()["items"][0]["dense"]["values"] if answer.status_code == 200 else None

    def has_epoch(epoch: int) -> bool:
        workers = httpx.get(f"{gateway}/health").json()["workers"]
        return [each["config_epoch"] for each in workers] == [epoch, epoch]

    assert add(root / "bert" / "model") == "t/new: epoch 1\n"
    assert add(root / "bert" / "model") == "t/new: unchanged since epoch 1\n"
    wait_for(lambda: has_epoch(1))
    wait_for(lambda: dense() is not None)
    before = dense()
    with Clients(addresses, ["t__new"]) as clients:
        clients.more(50)
        assert add(save_bert(root / "other", minilm_directory, pooling="cls")) == "t/new: epoch 2\n"
        wait_for(lambda: has_epoch(2))
        wait_for(lambda: dense() != before)
    assert dict(clients.failures) == {}
    table = done("status", f"--url={gateway}")
    assert "2 of 2 workers are ready; epoch of the model files: 2" in table
    assert done("cluster", "rm", "t/new", *of_config) == "t/new: removed, epoch 3\n"
    wait_for(lambda: has_epoch(3))
    wait_for(lambda: "t/new" not in {each["name"] for each in httpx.get(f"{gateway}/v1/models").json()["models"]})
    assert dense() is None


def test_a_known_model_is_served_once_a_request_names_it(cluster, ports: list[int]):
    _, addresses = cluster
    served = httpx.get(f"http://127.0.0.1:{ports[0]}/v1/models").json()["models"]
    assert KNOWN not in {each["name"] for each in served}
    with Clients(addresses, ["t__known"]) as clients:  # Triton's own clients
        clients.more(50)
    assert (clients.wrong, dict(clients.failures)) == ([], {})
    with pytest.raises(InferenceServerException, match="Request for unknown model: 't__never' is not found"):
        vector(triton.InferenceServerClient(addresses[0]), "t__never", "a", 60)


def test_a_worker_joins_a_leased_pool_and_comes_back(cluster, ports: list[int]):
    _, addresses = cluster
    gateway = f"http://127.0.0.1:{ports[0]}"

    def workers_of(pool: str) -> list[str]:
        found = httpx.get(f"{gateway}/health").json()["workers"]
        return [each["name"] for each in found if each["pool"] == pool and each["healthy"]]

    def status(**headers: str) -> int:
        items = {"items": [{"text": "a"}]}
        return httpx.post(f"{gateway}/v1/encode/t/m0", json=items, headers=headers, timeout=60).status_code

    with Clients(addresses, ["t__m0", "t__m1"]) as clients:
        clients.more(50)
        lease = httpx.post(f"{gateway}/v1/pools", json={"name": "eval", "gpus": {"default": 1}})
        assert (lease.status_code, lease.json()["status"]["state"]) == (201, "pending")
        wait_for(lambda: httpx.get(f"{gateway}/v1/pools/eval").json()["status"]["state"] == "active")
        assert (workers_of("default"), workers_of("eval")) == (["worker-0"], ["worker-1"])
        wait_for(lambda: status(**{"X-SIE-Pool": "eval"}) == 200)
        clients.more(50)
        assert httpx.delete(f"{gateway}/v1/pools/eval").status_code == 200
        wait_for(lambda: workers_of("default") == ["worker-0", "worker-1"])
        clients.more(50)
    assert (clients.wrong, dict(clients.failures)) == ([], {})


def test_a_sidecar_that_waits_for_the_queue_ends_when_it_is_told(tmp_path: Path):
    nats_port, metrics_port = free_ports(2)
    address = f"--nats-url=nats://127.0.0.1:{nats_port}"
    process = sie("sidecar", address, f"--data-dir={tmp_path}", f"--worker-metrics-port={metrics_port}")
    assert process.stderr is not None
    assert any("queue" in line for line in iter(process.stderr.readline, ""))  # it has tried to connect
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
