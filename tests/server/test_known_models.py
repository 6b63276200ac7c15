"""A default server adds a known model once a request names it, one beside the others; the hub is a stand-in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.ports import free_ports
from sie_triton import SIEClient
from sie_triton.client.failures import NotServed
from tests.conftest import MINILM
from tests.server.test_serve import port_flags, sie
from tests.support.gliners import save_gliner
from tests.support.hub import Hub, running
from tests.support.models import save_cross_encoder

ENCODER, SCORER, EXTRACTOR = "BAAI/bge-small-en-v1.5", "BAAI/bge-reranker-base", "urchade/gliner_small-v2.1"
ANOTHER = "avsolatorio/GIST-small-Embedding-v0"
OF_HUB = "org/tiny"  # not a known model
TEXT = "Ada Lovelace lived in London."


class Ports:
    """The addresses of a server with a door."""

    def __init__(self, ports: list[int]) -> None:
        self.http, self.grpc, self.metrics, self.controller, self.door = ports

    def client(self) -> SIEClient:
        return SIEClient(f"127.0.0.1:{self.grpc}", controller_url=f"http://127.0.0.1:{self.controller}", timeout=120)

    def post(self, route: str, **body: object) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.door}/v1/{route}", json=body, timeout=120)

    def get(self, route: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.door}/v1/{route}", timeout=60)

    def states(self) -> dict[str, str]:
        found = self.get("models").json()["models"]
        return {model["name"]: model["state"] for model in found}


@contextmanager
def default_server(data_dir: Path, *flags: str) -> Iterator[Ports]:
    """Serve nothing in particular, in small sub-batches: loads measure with full ones."""
    ports = free_ports(5)
    process = sie("serve", *flags, "--max-sub-batch-cost=2048", f"--data-dir={data_dir}", *port_flags(ports))
    try:
        assert process.stdout.readline() == "SIE ready\n"
        yield Ports(ports)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path, tiny_directory: Path) -> Iterator[Hub]:
    """Stand-in of the hub, with weights for a known model of each verb and for one that is not known."""
    root = tmp_path_factory.mktemp("hub")
    with running() as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(root / "hf"), "HF_HUB_OFFLINE": "0"}.items():
            patch.setenv(name, value)
        hub.put(ENCODER, minilm_directory)
        hub.put(ANOTHER, minilm_directory)
        hub.put(SCORER, save_cross_encoder(root / "scorer", minilm_directory))
        save_gliner(root / "extractor", minilm_directory)
        hub.put(EXTRACTOR, root / "extractor" / "model")
        hub.put(OF_HUB, tiny_directory)
        yield hub


def test_models_come_with_their_requests_and_leave_for_others(hub, tmp_path, minilm_directory):
    """Four at a time: the fifth, which is on the hub only, takes the place of the one used longest ago."""
    flags = ("--serve-known", "--allow-any-model", "--max-mentioned-models=4")
    with default_server(tmp_path / "data", *flags) as server, server.client() as client:
        assert list(server.states())[:1] == [MINILM]
        assert {server.states()[name] for name in (ANOTHER, ENCODER, SCORER, EXTRACTOR)} == {"available"}
        loads_for_tritons_clients(server, tmp_path / "data")
        first, again = client.encode(ENCODER, TEXT), client.encode(ENCODER, TEXT)
        assert first["timing"]["loading_ms"] > again["timing"]["loading_ms"] == 0
        expected = SentenceTransformer(str(minilm_directory)).encode(TEXT)
        np.testing.assert_allclose(first["dense"], expected, atol=1e-5)
        scored = server.post(f"score/{SCORER}", query={"text": "Who?"}, items=[{"text": TEXT}, {"text": "No."}])
        assert (scored.status_code, [each["rank"] for each in scored.json()["scores"]]) == (200, [0, 1])
        extracted = server.post(f"extract/{EXTRACTOR}", items=[{"text": TEXT}], params={"labels": ["person"]})
        assert (extracted.status_code, list(extracted.json()["items"][0])[:2]) == (200, ["id", "entities"])
        assert client.encode(OF_HUB, TEXT)["dense"].shape == (64,)
        assert {*client.list_models()} == {MINILM, ENCODER, SCORER, EXTRACTOR, OF_HUB}
        assert server.states()[ANOTHER] == "available"
        np.testing.assert_allclose(client.encode(ANOTHER, TEXT)["dense"], expected, atol=1e-5)
        with pytest.raises(NotServed, match="org/never"):
            client.encode("org/never", TEXT)
        answer = server.post("encode/org/never", items=[{"text": TEXT}])
        assert answer.status_code == 404


def loads_for_tritons_clients(server: Ports, data_dir: Path) -> None:
    url = f"http://127.0.0.1:{server.http}/v2/models/{ANOTHER.replace('/', '__')}"
    assert httpx.get(f"{url}/ready").status_code != 200
    loaded = sie("load", ANOTHER, f"--controller-port={server.controller}", f"--data-dir={data_dir}")
    said = loaded.communicate(timeout=120)
    assert (loaded.returncode, httpx.get(f"{url}/ready").status_code) == (0, 200), said
