"""Names of models: a known one is added once a request names it, one beside the others; the hub is a stand-in.

`org/name:profile` is a name at the door and in both clients, whether the profile is a parameter or a model.
"""

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.ports import free_ports
from sie_triton import AsyncSIEClient, InputError, SIEClient
from sie_triton.client.failures import NotServed
from sie_triton.engines.torch.cpu_kernels import has_int8
from tests.conftest import MINILM
from tests.server.test_serve import port_flags, sie, started
from tests.support.gliners import save_gliner
from tests.support.hub import Hub, running
from tests.support.models import save_cross_encoder

ENCODER, SCORER, EXTRACTOR = "BAAI/bge-small-en-v1.5", "BAAI/bge-reranker-base", "urchade/gliner_small-v2.1"
ANOTHER = "avsolatorio/GIST-small-Embedding-v0"
OF_HUB = "org/tiny"  # not a known model
MODEL = "test/m"  # a file with profiles
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
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(hub: Hub, data_dir: Path, tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Server of MODEL and, four at a time, of what requests name; in small sub-batches, because loads measure with
    full ones.
    """
    models_dir, ports = tmp_path_factory.mktemp("models"), free_ports(5)
    (models_dir / "m.yaml").write_text(
        textwrap.dedent(f"""\
        sie_id: {MODEL}
        weights_path: {tiny_directory}
        tasks: {{encode: {{dense: {{dim: 64}}}}}}
        max_sequence_length: 512
        profiles:
          default:
            adapter_path: sentence_transformer
          shouted:
            extends: default
            adapter_options: {{runtime: {{doc_template: "LOUD {{text}}"}}}}
          half:
            extends: default
            compute_precision: bfloat16
          eighth:
            extends: default
            compute_precision: int8
    """)
    )
    flags = ["--serve-known", "--allow-any-model", "--max-mentioned-models=4", "--max-sub-batch-cost=2048"]
    flags += [f"--models-dir={models_dir}", f"--data-dir={data_dir}"]
    with started(MINILM, MODEL, *flags, *port_flags(ports)):
        yield Ports(ports)


@pytest.fixture(scope="module")
def client(server: Ports) -> Iterator[SIEClient]:
    with server.client() as client:
        yield client


def test_models_come_with_their_requests_and_leave_for_others(server, client, data_dir, minilm_directory):
    """The fifth, which is on the hub only, takes the place of the one used longest ago."""
    assert {server.states()[name] for name in (ANOTHER, ENCODER, SCORER, EXTRACTOR)} == {"available"}
    loads_for_tritons_clients(server, data_dir)
    first, again = client.encode(ENCODER, TEXT), client.encode(ENCODER, TEXT)
    assert first["timing"]["loading_ms"] > again["timing"]["loading_ms"] == 0
    expected = SentenceTransformer(str(minilm_directory)).encode(TEXT)
    np.testing.assert_allclose(first["dense"], expected, atol=1e-5)
    scored = server.post(f"score/{SCORER}", query={"text": "Who?"}, items=[{"text": TEXT}, {"text": "No."}])
    assert (scored.status_code, [each["rank"] for each in scored.json()["scores"]]) == (200, [0, 1])
    extracted = server.post(f"extract/{EXTRACTOR}", items=[{"text": TEXT}], params={"labels": ["person"]})
    assert (extracted.status_code, list(extracted.json()["items"][0])[:2]) == (200, ["id", "entities"])
    assert client.encode(OF_HUB, TEXT)["dense"].shape == (64,)
    served = {name for name in client.list_models() if not name.startswith(MODEL)}
    assert served == {MINILM, ENCODER, SCORER, EXTRACTOR, OF_HUB}
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


@pytest.fixture(scope="module")
def vectors(client):
    """The vector of each profile, under the names that Triton's own clients use."""
    found = {
        "default": client.encode(MODEL, TEXT),
        "shouted": client.encode(MODEL, TEXT, profile="shouted"),
        "half": client.encode(f"{MODEL}.half", TEXT),
        "eighth": client.encode(f"{MODEL}.eighth", TEXT),
    }
    vectors = {name: result["dense"] for name, result in found.items()}
    assert abs(vectors["default"] - vectors["shouted"]).max() > 0.01
    assert abs(vectors["default"] - vectors["half"]).max() > 1e-5
    return vectors


def test_a_profile_may_be_computed_in_8_bits(vectors):
    assert vectors["eighth"] @ vectors["default"] > 0.98
    if has_int8():
        assert min(abs(vectors["eighth"] - vectors[name]).max() for name in ("default", "half")) > 1e-5


@pytest.mark.parametrize("profile", ["default", "shouted", "half"])
def test_a_profile_is_part_of_the_name(server, client, vectors, profile):
    name = f"{MODEL}:{profile}"
    np.testing.assert_allclose(client.encode(name, TEXT)["dense"], vectors[profile], atol=1e-6)

    async def encoded():
        async with AsyncSIEClient(f"http://127.0.0.1:{server.http}") as client:
            return await client.encode(name, TEXT)

    np.testing.assert_allclose(asyncio.run(encoded())["dense"], vectors[profile], atol=1e-6)
    answer = server.post(f"encode/{name}", items=[{"text": TEXT}]).json()
    assert answer["model"] == name
    np.testing.assert_allclose(answer["items"][0]["dense"]["values"], vectors[profile], atol=1e-6)
    embedded = server.post("embeddings", model=name, input=TEXT).json()
    np.testing.assert_allclose(embedded["data"][0]["embedding"], vectors[profile], atol=1e-6)


def test_each_profile_is_listed_as_a_model(server, vectors):
    names = [MODEL, *(f"{MODEL}:{name}" for name in ("shouted", "half", "eighth")), f"{MODEL}.eighth", f"{MODEL}.half"]
    listed = [each for each in server.states().items() if each[0].startswith(MODEL)]
    assert listed == [(name, "loaded") for name in names]
    for name in names:
        assert server.get(f"models/{name}").json()["name"] == name
    assert server.get(f"models/{MODEL}:default").json()["name"] == MODEL


def test_an_unknown_profile_is_answered_with_those_of_the_model(server, client):
    reason = f"model: {MODEL} has no profile quiet; its profiles are default, shouted, half, eighth"
    with pytest.raises(NotServed) as refused:
        client.encode(f"{MODEL}:quiet", TEXT)
    assert str(refused.value) == reason
    for answer in (server.post(f"encode/{MODEL}:quiet", items=[{"text": TEXT}]), server.get(f"models/{MODEL}:quiet")):
        assert (answer.status_code, answer.json()["detail"]["message"]) == (404, reason)


def test_two_different_profiles_are_refused(server, client):
    with pytest.raises(InputError, match="profile: 'half' differs from that of test/m:shouted"):
        client.encode(f"{MODEL}:shouted", TEXT, profile="half")
    params = {"options": {"profile": "half"}}
    answer = server.post(f"encode/{MODEL}:shouted", items=[{"text": TEXT}], params=params)
    assert (answer.status_code, "differs" in answer.text) == (400, True)
    same = server.post(f"encode/{MODEL}:shouted", items=[{"text": TEXT}], params={"options": {"profile": "shouted"}})
    assert same.status_code == 200


def test_a_profile_of_a_step_is_not_served(server, client):
    name = f"{MODEL}-preprocess:shouted"
    assert server.post(f"encode/{name}", items=[{"text": TEXT}]).status_code == 404
    with pytest.raises(NotServed):
        client.encode(name, TEXT)
