"""A server and a cluster whose metrics are read, as Prometheus reads them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.ports import free_ports
from sie_triton import SIEClient
from sie_triton.controller.commands import ask, path_of
from sie_triton.settings import read_settings
from tests.conftest import model_file, tiny_model_file
from tests.server.test_serve import port_flags, sie
from tests.support.models import save_bert, save_cross_encoder

ENCODER, RERANKER = "test/encoder", "test/reranker"
TOKEN = "a-token-of-clients"


class Counted:
    """A door or gateway with tokens, and its figures by name and labels. `targets` are what Prometheus scrapes."""

    def __init__(self, http_port: int, grpc_port: int, targets: Sequence[str]) -> None:
        self.grpc, self.targets = f"grpc://127.0.0.1:{grpc_port}", targets
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{http_port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
        )

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
    """A server."""

    def __init__(self, ports: list[int], data_dir: Path) -> None:
        super().__init__(ports[4], ports[1], [f"127.0.0.1:{ports[4]}"])
        self.ports, self.data_dir = ports, data_dir

    def evict(self, model: str) -> None:
        settings = read_settings(data_dir=self.data_dir, controller_port=self.ports[3])
        ask(settings, f"{path_of(model)}/evict", "POST")


def flags_of(root: Path, minilm_directory: Path) -> list[str]:
    """Save an encoder and a reranker, and return flags that serve them with TOKEN."""
    models = root / "models"
    models.mkdir()
    reranker = save_cross_encoder(root / "reranker", minilm_directory)
    (models / "a.yaml").write_text(tiny_model_file(ENCODER, save_bert(root / "bert", minilm_directory)))
    (models / "b.yaml").write_text(model_file(RERANKER, reranker, "cross_encoder", {"score": {}}))
    tokens = ["--auth-mode=token", f"--auth-tokens={TOKEN}", "--door-workers=2", "--no-serve-known"]
    return [f"--models-dir={models}", f"--data-dir={root / 'data'}", *tokens]


@contextmanager
def counted_server(root: Path, minilm_directory: Path) -> Iterator[Served]:
    """Run an encoder and a reranker behind two door processes that ask for TOKEN."""
    ports = free_ports(5)
    process = sie("serve", ENCODER, RERANKER, *flags_of(root, minilm_directory), *port_flags(ports))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n"
        found = Served(ports, root / "data")
        with found.http:
            yield found
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def counted_cluster(root: Path, minilm_directory: Path) -> Iterator[Counted]:
    """Run a cluster of two workers behind two gateway processes that ask for TOKEN; it evicts idle models."""
    http, grpc, config = free_ports(3)
    ports = [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}"]
    flags = [*flags_of(root, minilm_directory), *ports, "--workers=2", "--idle-evict-s=2"]
    process = sie("cluster", "up", ENCODER, RERANKER, *flags)
    try:
        assert process.stdout is not None
        targets = next(line for line in iter(process.stdout.readline, "") if line.startswith("metrics")).split()[1:5]
        assert "SIE cluster ready\n" in iter(process.stdout.readline, "")
        found = Counted(http, grpc, targets)
        with found.http:
            yield found
    finally:
        process.terminate()
        process.communicate()
