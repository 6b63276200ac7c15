"""A server and a cluster whose metrics are read, as Prometheus reads them."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.ports import free_ports
from sie_triton import SIEClient
from sie_triton.controller.commands import ask, path_of
from sie_triton.settings import read_settings
from tests.conftest import gliner_file, model_file, tiny_model_file
from tests.server.test_serve import port_flags, sie
from tests.support.controller import wait_for
from tests.support.gliners import save_gliner
from tests.support.models import save_bert, save_cross_encoder
from tests.support.otlp import Receiver, receiving

ENCODER, RERANKER, EXTRACTOR = "test/encoder", "test/reranker", "test/extractor"
TOKEN, ADMIN_TOKEN = "a-token-of-clients", "adm1n"
OUTSIDE = "127.0.0.2"  # stands for an address that other machines can reach
FOLLOWED = {
    "SIE_LOG_JSON": "true",
    "SIE_LOG_REQUESTS": "true",
    "SIE_TRACING_ENABLED": "true",
    "OTEL_BSP_SCHEDULE_DELAY": "50",
    "OTEL_TRACES_SAMPLER": "parentbased_always_on",
    "SIE_INSTRUMENTATION": "true",
    "SIE_GPU_TYPE": "l4",
    "SIE_GPU_COUNT": "2",
    "SIE_BUNDLE": "nightly",
}


class Counted:
    """A door or gateway with tokens, and its figures by name and labels. `targets` are what Prometheus scrapes."""

    def __init__(self, http: str, grpc_port: int, targets: Sequence[str]) -> None:
        self.grpc, self.targets = f"grpc://127.0.0.1:{grpc_port}", targets
        self.http = httpx.Client(base_url=f"http://{http}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)

    def families(self):
        answer = self.http.get("/metrics")
        answer.raise_for_status()
        return list(text_string_to_metric_families(answer.text))

    def figure(self, name: str, **labels: str) -> float:
        """Sum of the samples with these labels."""
        return sum(
            sample.value
            for family in self.families()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def encode(self, *texts: str) -> None:
        body = {"items": [{"text": text} for text in texts]}
        self.http.post(f"/v1/encode/{ENCODER}", json=body).raise_for_status()

    def be_busy(self) -> None:
        """Make traffic of every kind that the dashboard shows, evictions aside."""
        self.encode("a", "b")
        wrong = {"items": [{"text": "a"}], "params": {"options": {"dimensions": 0}}}
        assert self.http.post(f"/v1/encode/{ENCODER}", json=wrong).status_code == 400
        with SIEClient(self.grpc, token=TOKEN, controller_url="") as client:
            client.encode(ENCODER, "a")


class Served(Counted):
    """A server that sends spans to `receiver`; `lines` are those of its standard output."""

    def __init__(self, ports: list[int], data_dir: Path, receiver: Receiver, pid: int) -> None:
        super().__init__(f"{OUTSIDE}:{ports[4]}", ports[1], [f"{OUTSIDE}:{ports[4]}"])
        self.pid = pid
        self.ports, self.data_dir, self.receiver = ports, data_dir, receiver
        self.lines: list[dict[str, Any]] = []

    def lines_of(self, request_id: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("request_id") == request_id]

    def evict(self, model: str) -> None:
        settings = read_settings(
            data_dir=self.data_dir, controller_port=self.ports[3], admin_token=ADMIN_TOKEN, auth_tokens=TOKEN
        )
        ask(settings, f"{path_of(model)}/evict", "POST")


def flags_of(root: Path, minilm_directory: Path) -> list[str]:
    """Save an encoder, a reranker and an extractor, and return flags that serve them with TOKEN."""
    models = root / "models"
    models.mkdir()
    reranker = save_cross_encoder(root / "reranker", minilm_directory)
    save_gliner(root / "gliner", minilm_directory, num_rnn_layers=0)
    (models / "a.yaml").write_text(tiny_model_file(ENCODER, save_bert(root / "bert", minilm_directory)))
    (models / "b.yaml").write_text(model_file(RERANKER, reranker, "cross_encoder", {"score": {}}))
    (models / "c.yaml").write_text(gliner_file(EXTRACTOR, root / "gliner" / "model"))
    (models / "bundles").mkdir()
    (models / "bundles" / "nightly.yaml").write_text(yaml.safe_dump({"models": [ENCODER, RERANKER, EXTRACTOR]}))
    tokens = ["--auth-mode=token", f"--auth-tokens={TOKEN}", "--door-workers=2", "--no-serve-known"]
    return [f"--models-dir={models}", f"--data-dir={root / 'data'}", *tokens]


@contextmanager
def counted_server(root: Path, minilm_directory: Path) -> Iterator[Served]:
    """Run the models behind two door processes that ask for TOKEN, with all that follows requests switched on."""
    ports = free_ports(5)
    names = (ENCODER, RERANKER, EXTRACTOR)
    with receiving() as receiver:
        variables = {**FOLLOWED, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.address}"}
        flags = [*flags_of(root, minilm_directory), f"--host={OUTSIDE}", "--admin-token", ADMIN_TOKEN]
        process = sie("serve", *names, *flags, *port_flags(ports), **variables)
        found = Served(ports, root / "data", receiver, process.pid)
        reading = Thread(target=read_lines, args=(process, found.lines))
        reading.start()
        try:
            wait_for(lambda: any(line["message"] == "SIE ready" for line in found.lines))
            with found.http:
                yield found
        finally:
            process.terminate()
            reading.join()
            _, said = process.communicate()
        assert said == ""


def read_lines(process: subprocess.Popen[str], lines: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines += [json.loads(line)]  # every line is JSON


@contextmanager
def counted_cluster(root: Path, minilm_directory: Path) -> Iterator[Counted]:
    """Run a worker behind two gateway processes that ask for TOKEN; it evicts idle models."""
    http, grpc, config = free_ports(3)
    ports = [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}"]
    flags = [*flags_of(root, minilm_directory), *ports, "--workers=1", "--idle-evict-s=2"]
    process = sie("cluster", "up", ENCODER, RERANKER, *flags)
    try:
        assert process.stdout is not None
        targets = next(line for line in iter(process.stdout.readline, "") if line.startswith("metrics")).split()[1:4]
        assert "SIE cluster ready\n" in iter(process.stdout.readline, "")
        found = Counted(f"127.0.0.1:{http}", grpc, targets)
        with found.http:
            yield found
    finally:
        process.terminate()
        process.communicate()
