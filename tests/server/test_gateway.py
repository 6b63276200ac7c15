"""Through gateway, queue and sidecar, every client gets the answers that Triton itself gives, bit by bit."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
import tritonclient.grpc as triton
from openai import OpenAI
from sentence_transformers import SentenceTransformer
from tritonclient.utils import InferenceServerException

from sie_triton import InputError, SIEClient
from sie_triton.cluster.permissions import SIDECAR
from sie_triton.doors.body_codec import read_msgpack
from sie_triton.models import known_loras
from sie_triton.settings import Settings
from tests.conftest import (
    BGE_M3,
    CLAP,
    CLIP,
    COLBERT,
    CROSS_ENCODER,
    FLORENCE2,
    GLINER,
    MINILM,
    SPLADE,
    TINY,
)
from tests.support.in_cluster import config_service_of, gateway_of, sidecar_of
from tests.support.loras import save_lora
from tests.support.nats import NatsServer
from tests.support.pictures import pictures
from tests.support.sounds import sounds

MODELS = [BGE_M3, CLAP, CLIP, COLBERT, CROSS_ENCODER, FLORENCE2, GLINER, MINILM, SPLADE, TINY]
TEXTS = ["Berlin is the capital of Germany", "", "vines climb"]
FILES = pictures([(97, 61), (40, 90)])
GUARDED = "--auth-mode=token", "--auth-tokens=secret"


class Gateways:
    """Addresses of two gateways, clients of them and of the Triton behind them, and its settings.

    `guarded` are the addresses of a third one, which requires the token `secret`.
    """

    def __init__(self, addresses: list[tuple[str, str]], guarded: tuple[str, str], settings: Settings) -> None:
        self.https, self.grpcs = zip(*addresses, strict=True)
        self.guarded = guarded
        self.settings = settings
        self.direct_address = f"127.0.0.1:{settings.grpc_port}"
        self.clients = [SIEClient(f"grpc://{each}", controller_url="") for each in self.grpcs]
        self.direct = SIEClient(f"grpc://{self.direct_address}", controller_url="")

    def are_tritons(self, ask: Callable[[SIEClient], Any]) -> bool:
        """Return True if each gateway's answer is Triton's, bit by bit."""
        expected = ask(self.direct)
        return all(same(found, expected) for found in map(ask, self.clients))


@pytest.fixture(scope="module")
def gateways(server, tmp_path_factory) -> Iterator[Gateways]:
    """Two gateways before one Triton, and a guarded one."""
    root = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer(root))
        stack.enter_context(config_service_of(nats))
        settings = server.settings.model_copy(update={"worker_id": "w0"})
        stack.enter_context(sidecar_of(nats.user(settings, SIDECAR), MODELS))
        addresses = [stack.enter_context(gateway_of(nats, root / name)) for name in ("g0", "g1")]
        guarded = stack.enter_context(gateway_of(nats, root / "guarded", *GUARDED))
        yield Gateways(addresses, guarded, settings)


def same(one: Any, other: Any) -> bool:
    """Return True if two results are equal, their times aside."""
    if isinstance(one, dict):
        names = one.keys() - {"timing"}
        return names == other.keys() - {"timing"} and all(same(one[name], other[name]) for name in names)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


DTYPES = ("float32", "ubinary")
ENCODES = [
    *[(BGE_M3, TEXTS, {"output_dtype": dtype, "output_types": ["dense", "multivector"]}) for dtype in DTYPES],
    (BGE_M3, TEXTS, {"output_types": ["sparse"]}),
    (f"{BGE_M3}:sparse", TEXTS, {}),
    (f"{BGE_M3}:asking", TEXTS, {"is_query": True, "instruction": "find cats"}),
    (COLBERT, TEXTS, {"output_types": ["muvera"]}),
    (SPLADE, TEXTS, {}),
    (MINILM, [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}], {"options": {"dimensions": 128}}),
    (CLIP, ["a cat", {"image": FILES[0]}, {"image": FILES[1], "id": "x"}], {}),
    (CLAP, [{"audio": sounds()[0]}], {}),
]


@pytest.mark.parametrize(("model", "items", "options"), ENCODES, ids=lambda each: str(each)[:60])
def test_vectors_are_those_of_triton(gateways, model, items, options):
    assert gateways.are_tritons(lambda client: client.encode(model, items, **options))
    assert gateways.clients[0].encode(model, items, **options)[0]["timing"]["total_ms"] > 0


def test_an_adapter_changes_vectors_as_at_triton(gateways, tiny_directory, tmp_path):
    model, name = SentenceTransformer(str(tiny_directory), device="cpu")[0].model, "of-a-gateway"
    save_lora(tmp_path / "lora", model, target_modules="all-linear")
    loras = Path(gateways.settings.runtime.loras_dir)
    known_loras.add(known_loras.added_path(loras, TINY), name, str(tmp_path / "lora"))
    assert gateways.are_tritons(lambda client: client.encode(TINY, TEXTS, lora=name))
    for client in gateways.clients:
        assert not same(client.encode(TINY, TEXTS, lora=name), client.encode(TINY, TEXTS))
        with pytest.raises(InputError, match="has no adapter 'nobody'"):
            client.encode(TINY, TEXTS, lora="nobody")


@pytest.mark.parametrize("model", [CROSS_ENCODER, COLBERT, BGE_M3])
def test_scores_are_those_of_triton(gateways, model):
    assert gateways.are_tritons(lambda client: client.score(model, {"id": "q", "text": "capital"}, TEXTS))


@pytest.mark.parametrize(
    ("model", "items", "labels"), [(GLINER, TEXTS, ["city", "plant"]), (FLORENCE2, [{"image": FILES[0]}], [])]
)
def test_extractions_are_those_of_triton(gateways, model, items, labels):
    assert gateways.are_tritons(lambda client: client.extract(model, items, labels))


@pytest.mark.parametrize("dtype", ["float16", "ubinary"])
def test_the_http_door_of_a_gateway_answers_as_triton(gateways, dtype):
    """SIE's own SDK sends msgpack, and expects arrays."""
    options = {"output_dtype": dtype, "output_types": ["dense"]}
    expected = [each["dense"].tobytes() for each in gateways.direct.encode(BGE_M3, TEXTS, **options)]
    body = {"items": [{"id": f"{i}", "text": text} for i, text in enumerate(TEXTS)]}
    body["params"] = {"output_types": ["dense"], "output_dtype": dtype}
    for url in gateways.https:
        headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
        answer = httpx.post(f"{url}/v1/encode/{BGE_M3}", content=msgpack.packb(body), headers=headers, timeout=60)
        found = read_msgpack(answer.content)
        assert answer.headers["X-Total-Time"]
        assert [each["id"] for each in found["items"]] == ["0", "1", "2"]
        assert [each["dense"]["values"].tobytes() for each in found["items"]] == expected


def test_openais_client_gets_the_vectors_of_triton(gateways):
    client = OpenAI(base_url=f"{gateways.https[0]}/v1", api_key="none")
    found = client.embeddings.create(model=MINILM, input=TEXTS[:1])
    expected = gateways.direct.encode(MINILM, TEXTS[:1])[0]["dense"].tobytes()
    assert np.float32(found.data[0].embedding).tobytes() == expected
    assert MINILM in [model.id for model in client.models.list()]


def test_coheres_rerank_gets_the_scores_of_triton(gateways):
    expected = gateways.direct.score(CROSS_ENCODER, "capital", TEXTS)["scores"]
    body = {"model": CROSS_ENCODER, "query": "capital", "documents": TEXTS}
    found = httpx.post(f"{gateways.https[1]}/v2/rerank", json=body, timeout=60).json()["results"]
    ranked = [(f"item-{each['index']}", np.float32(each["relevance_score"])) for each in found]
    assert ranked == [(each["item_id"], np.float32(each["score"])) for each in expected]


def infer_input(*texts: bytes) -> list[Any]:
    tensor = triton.InferInput("text", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, object))
    return [tensor]


def test_tritons_own_client_sees_one_triton(gateways):
    name = TINY.replace("/", "__")
    direct = triton.InferenceServerClient(gateways.direct_address)
    for address in gateways.grpcs:
        client = triton.InferenceServerClient(address)
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(name)
        assert not client.is_model_ready("nothing")
        assert client.get_model_metadata(name) == direct.get_model_metadata(name)
        assert client.get_model_config(name) == direct.get_model_config(name)
        assert client.get_server_metadata() == direct.get_server_metadata()
        found = client.infer(name, infer_input(b"a", b"b c"), request_id="mine")
        expected = direct.infer(name, infer_input(b"a", b"b c"), request_id="mine")
        assert found.get_response().id == "mine"
        assert np.array_equal(found.as_numpy("dense"), expected.as_numpy("dense"))


def test_errors_are_those_of_triton(gateways):
    for model, items, options in (
        (TINY, ["a"], {"options": {"dimensions": 0}}),
        (TINY, [], {"output_types": ["nothing"]}),
        ("t/none", ["a"], {}),
        (GLINER, ["a"], {}),
    ):
        errors = []
        for client in (gateways.direct, *gateways.clients):
            try:
                client.encode(model, items, **options)
            except Exception as exc:
                errors.append((type(exc), getattr(exc, "field", "")))
            else:
                errors.append((None, ""))
        assert len(set(errors)) == 1, errors
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
        triton.InferenceServerClient(gateways.grpcs[0]).infer("nothing", infer_input(b"a"))
    with pytest.raises(InputError, match="dimensions"):
        gateways.clients[0].encode(TINY, "a", options={"dimensions": 0})


def test_a_request_beyond_its_time_is_a_deadline_error(gateways):
    body = {"items": [{"text": "a" * 100}] * 64}
    answer = httpx.post(f"{gateways.https[0]}/v1/encode/{MINILM}", json=body, headers={"X-Request-Timeout": "0.001"})
    assert answer.status_code in (503, 504)


def test_liveness_and_readiness(gateways):
    for path in ("/healthz", "/readyz", "/health", "/status", "/metrics", "/"):
        assert httpx.get(f"{gateways.https[0]}{path}").status_code == 200
    capacity = httpx.get(f"{gateways.https[0]}/health").json()
    found = capacity["type"], capacity["status"], capacity["cluster"]["worker_count"]
    assert found == ("gateway", "healthy", 1)
    (worker,) = capacity["workers"]
    assert (worker["name"], worker["pool"], worker["healthy"]) == ("w0", "default", True)
    assert MINILM in worker["loaded_models"]


def test_a_request_names_its_pool_by_a_header_or_by_metadata(gateways):
    """Of the pool that there is, it gets an answer; of another one, when to retry."""
    body, client = {"items": [{"text": "a"}]}, triton.InferenceServerClient(gateways.grpcs[0])
    for pool, status in (("default", 200), ("large", 503), ("a.b", 400)):
        answer = httpx.post(f"{gateways.https[0]}/v1/encode/{TINY}", json=body, headers={"X-SIE-Pool": pool})
        assert answer.status_code == status
    client.infer(TINY.replace("/", "__"), infer_input(b"a"), headers={"x-sie-pool": "default"})
    with pytest.raises(InferenceServerException, match="pool large has no worker"):
        client.infer(TINY.replace("/", "__"), infer_input(b"a"), headers={"x-sie-pool": "large"})
    with pytest.raises(InferenceServerException, match="no worker is a 'h100'"):
        client.infer(TINY.replace("/", "__"), infer_input(b"a"), headers={"x-sie-machine-profile": "h100"})


def test_commands_call_a_gateway_by_its_address_and_a_token(gateways):
    http, grpc = gateways.guarded
    for token, said in (("secret", "1 of 1 workers are ready"), ("wrong", "does not accept the bearer token")):
        status = run("status", f"--url={http}", f"--auth-tokens={token}")
        assert said in status.stdout + status.stderr
    assert "the bearer token is missing" in run("encode", TINY, "a", f"--url=grpc://{grpc}").stderr
    assert f"connect to Triton itself, at grpc://{grpc}" in run("encode", TINY, "a", f"--url={http}").stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sie_triton.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
