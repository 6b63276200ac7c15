"""A server whose metrics are read, as Prometheus reads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.ports import free_ports
from sie_triton.controller.commands import ask, path_of
from sie_triton.settings import read_settings
from tests.conftest import model_file, tiny_model_file
from tests.server.test_serve import port_flags, sie
from tests.support.models import save_bert, save_cross_encoder

ENCODER, RERANKER = "test/encoder", "test/reranker"
TOKEN = "a-token-of-clients"


class Served:
    """A server with tokens; its figures by name and labels."""

    def __init__(self, ports: list[int], data_dir: Path) -> None:
        self.ports, self.data_dir = ports, data_dir
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{ports[4]}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
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

    def evict(self, model: str) -> None:
        settings = read_settings(data_dir=self.data_dir, controller_port=self.ports[3])
        ask(settings, f"{path_of(model)}/evict", "POST")


@contextmanager
def counted_server(root: Path, minilm_directory: Path) -> Iterator[Served]:
    """Run an encoder and a reranker behind two door processes that ask for TOKEN."""
    models = root / "models"
    models.mkdir()
    reranker = save_cross_encoder(root / "reranker", minilm_directory)
    (models / "a.yaml").write_text(tiny_model_file(ENCODER, save_bert(root / "bert", minilm_directory)))
    (models / "b.yaml").write_text(model_file(RERANKER, reranker, "cross_encoder", {"score": {}}))
    ports = free_ports(5)
    tokens = ["--auth-mode=token", f"--auth-tokens={TOKEN}", "--door-workers=2", "--no-serve-known"]
    flags = [f"--models-dir={models}", f"--data-dir={root / 'data'}", *port_flags(ports), *tokens]
    process = sie("serve", ENCODER, RERANKER, *flags)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n"
        found = Served(ports, root / "data")
        with found.http:
            yield found
    finally:
        process.terminate()
        process.communicate()
