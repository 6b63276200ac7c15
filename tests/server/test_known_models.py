"""A default server adds a known model once a request names it; the hub is a stand-in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

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

    def models(self) -> dict[str, dict]:
        found = self.get("models").json()["models"]
        return {model["name"]: model for model in found}


@contextmanager
def default_server(data_dir: Path, *flags: str) -> Iterator[Ports]:
    """Serve nothing in particular, in small sub-batches: loads measure with full ones."""
    from benchmarks.ports import free_ports

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


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("known")


@pytest.fixture(scope="module")
def server(hub: Hub, data_dir: Path) -> Iterator[Ports]:
    with default_server(data_dir, "--serve-known") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Ports) -> Iterator[SIEClient]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def server_of_one(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Serves any model of the hub, one at a time beside MINILM."""
    flags = ("--allow-any-model", "--max-mentioned-models=1")
    with default_server(tmp_path_factory.mktemp("of-one"), *flags) as server:
        yield server


def test_a_request_to_a_known_model_is_answered(server, client, minilm_directory):
    assert list(server.models())[:1] == [MINILM]
    for name in (ENCODER, SCORER, EXTRACTOR):
        assert server.models()[name]["state"] == "available"
    first, again = client.encode(ENCODER, TEXT), client.encode(ENCODER, TEXT)
    assert first["timing"]["loading_ms"] > again["timing"]["loading_ms"] == 0
    dense = first["dense"]
    np.testing.assert_allclose(dense, SentenceTransformer(str(minilm_directory)).encode(TEXT), atol=1e-5)
    scored = server.post(f"score/{SCORER}", query={"text": "Who?"}, items=[{"text": TEXT}, {"text": "No."}])
    assert scored.status_code == 200, scored.text
    assert [each["rank"] for each in scored.json()["scores"]] == [0, 1]
    extracted = server.post(f"extract/{EXTRACTOR}", items=[{"text": TEXT}], params={"labels": ["person"]})
    assert (extracted.status_code, list(extracted.json()["items"][0])[:2]) == (200, ["id", "entities"])
    embedded = server.post("embeddings", model="intfloat/e5-small-v2", input=TEXT)
    assert (embedded.status_code, "intfloat/e5-small-v2" in embedded.text) == (502, True)  # the hub lacks it
    assert {MINILM, ENCODER, SCORER, EXTRACTOR, "intfloat/e5-small-v2"} <= set(client.list_models())


def test_an_unknown_name_gets_404_and_the_most_similar_names(server, client):
    served = client.list_models()
    answer = server.post("encode/BAAI/bge-m4", items=[{"text": TEXT}])
    assert answer.status_code == 404
    similar = "BAAI/bge-m4 is not served; the most similar names are BAAI/bge-m3, "
    assert answer.json()["detail"]["message"].startswith(f"model: {similar}")
    with pytest.raises(NotServed, match=similar):
        client.encode("BAAI/bge-m4", TEXT)
    assert client.list_models() == served


def test_the_controllers_load_serves_a_known_model_for_tritons_clients(server, data_dir):
    url = f"http://127.0.0.1:{server.http}/v2/models/{ANOTHER.replace('/', '__')}"
    assert httpx.get(f"{url}/ready").status_code != 200
    loaded = sie("load", ANOTHER, f"--controller-port={server.controller}", f"--data-dir={data_dir}")
    said = loaded.communicate(timeout=120)
    assert (loaded.returncode, httpx.get(f"{url}/ready").status_code) == (0, 200), said


def test_any_model_on_the_hub_is_served_if_that_is_allowed(server_of_one):
    with server_of_one.client() as client:
        assert client.encode(OF_HUB, TEXT)["dense"].shape == (64,)
        with pytest.raises(NotServed, match="org/never"):
            client.encode("org/never", TEXT)


def test_a_mentioned_model_leaves_for_another_and_comes_back(server_of_one):
    with server_of_one.client() as client:
        first = client.encode(ENCODER, TEXT)["dense"]
        assert len(client.score(SCORER, "Who?", [TEXT])["scores"]) == 1
        assert client.list_models() == [SCORER, MINILM]
        assert server_of_one.models()[ENCODER]["state"] == "available"
        np.testing.assert_allclose(client.encode(ENCODER, TEXT)["dense"], first, atol=1e-6)
