"""What `sie-triton cluster up --log-json` prints: lines of JSON that name their worker, and all addresses."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.ports import free_ports
from tests.conftest import tiny_model_file
from tests.server.test_serve import sie
from tests.support.models import save_bert

MODEL = "t/m"
READY = "SIE cluster ready"


@pytest.fixture(scope="module")
def printed(tmp_path_factory, minilm_directory: Path) -> Iterator[list[dict[str, str]]]:
    """The lines until a cluster of two workers was ready; it runs on."""
    root = tmp_path_factory.mktemp("cluster")
    (root / "m.yaml").write_text(tiny_model_file(MODEL, save_bert(root / "bert", minilm_directory)))
    http, grpc, config = free_ports(3)
    flags = [f"--data-dir={root / 'data'}", f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}"]
    process = sie("cluster", "up", str(root / "m.yaml"), *flags, "--log-json")
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["message"] == READY:
                break
        yield lines
    finally:
        process.terminate()
        process.communicate()


def test_lines_name_their_worker_and_none_about_cuda_is_an_error(printed):
    assert printed[-1]["message"] == READY
    of_triton = [line for line in printed if line["logger"] == "tritonserver"]
    assert {line["worker"] for line in of_triton} == {"worker-0", "worker-1"}
    levels = {line["level"] for line in of_triton if "CUDA" in line["message"] or "Cuda" in line["message"]}
    assert levels == {"INFO"}


def test_each_address_answers(printed):
    lines = [line["message"] for line in printed if "worker" not in line]
    shown = {line.split()[0]: line for line in lines if re.match(r"(page|config|queue|metrics|worker-[01]) ", line)}
    assert list(shown) == ["page", "config", "queue", "metrics", "worker-0", "worker-1"]
    urls = [f"{httpx.URL(shown[name].split()[1]).join('/readyz')}" for name in ("page", "config")]
    targets = re.findall(r"[\d.]+:\d+", shown["metrics"])
    of_workers = [int(re.findall(r"metrics (\d+)", shown[f"worker-{i}"])[0]) for i in range(2)]
    assert [int(target.split(":")[1]) for target in targets[2:]] == of_workers
    urls += [f"http://{target}/metrics" for target in targets]
    assert [httpx.get(url).status_code for url in urls] == [200] * 6
