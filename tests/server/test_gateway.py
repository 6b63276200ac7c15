"""Through gateway, queue and sidecar, every client gets the answers that Triton itself gives, bit by bit."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.companions import fork_servers
from sie_triton.server.launch import Server
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
    Running,
    fresh_settings,
)
from tests.support.controller import wait_for
from tests.support.in_cluster import config_service_of, gateway_of, sidecar_of
from tests.support.loras import save_lora
from tests.support.nats import NatsServer
from tests.support.pictures import pictures
from tests.support.sounds import sounds

MODELS = [BGE_M3, CLAP, CLIP, COLBERT, CROSS_ENCODER, FLORENCE2, GLINER, MINILM, SPLADE, TINY]
TEXTS = ["Berlin is the capital of Germany", "", "vines climb"]
FILES = pictures([(97, 61), (40, 90)])
GUARDED = "--auth-mode=token", "--auth-tokens=secret", "--door-max-memory-bytes=20000000"


class Gateways:
    """Addresses of two gateways, clients of them and of each Triton behind them, and the settings of those.

    `guarded` are the addresses of a third one, which requires the token `secret` and has little memory.

    Tritons split a request among their lanes by their own measurements, so that the last bit of a value may differ.
    """

    def __init__(self, addresses: list[tuple[str, str]], guarded: tuple[str, str], servers: list[Settings]) -> None:
        self.https, self.grpcs = zip(*addresses, strict=True)
        self.guarded = guarded
        self.servers = servers
        self.direct_address = f"127.0.0.1:{servers[0].grpc_port}"
        self.clients = [SIEClient(f"grpc://{each}", controller_url="") for each in self.grpcs]
        self.tritons = [SIEClient(f"grpc://127.0.0.1:{each.grpc_port}", controller_url="") for each in servers]
        self.direct = self.tritons[0]

    def are_tritons(self, ask: Callable[[SIEClient], Any]) -> bool:
        """Return True if each gateway's answer is that of a Triton, bit by bit."""
        expected = [ask(triton) for triton in self.tritons]
        return all(any(same(found, each) for each in expected) for found in map(ask, self.clients))


@contextmanager
def like(server: Running, root: Path) -> Iterator[Settings]:
    """Run another Triton with the same models."""
    settings = fresh_settings(root, models_dir=server.settings.models_dir)
    assert write_repository(root / "repository", settings, MODELS, runtime=settings.runtime) == []
    with fork_servers(settings, ()), Server(settings, root / "repository") as running:
        running.wait_ready()
        yield settings


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.slow)])
def gateways(server, tmp_path_factory, request) -> Iterator[Gateways]:
    """Two gateways before one Triton, and before three, and a guarded one."""
    root = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer(root))
        stack.enter_context(config_service_of(nats))
        others = [stack.enter_context(like(server, root / f"server-{i}")) for i in range(1, request.param)]
        servers = [each.model_copy(update={"worker_id": f"w{i}"}) for i, each in enumerate([server.settings, *others])]
        for each in servers:
            stack.enter_context(sidecar_of(nats.user(each, SIDECAR), MODELS))
        addresses = [stack.enter_context(gateway_of(nats, root / name)) for name in ("g0", "g1")]
        guarded = stack.enter_context(gateway_of(nats, root / "guarded", *GUARDED))
        yield Gateways(addresses, guarded, servers)


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


DTYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
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
    for each in gateways.servers:
        known_loras.add(known_loras.added_path(Path(each.runtime.loras_dir), TINY), name, str(tmp_path / "lora"))
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
    expected = [
        [each["dense"].tobytes() for each in triton.encode(BGE_M3, TEXTS, **options)] for triton in gateways.tritons
    ]
    body = {"items": [{"id": f"{i}", "text": text} for i, text in enumerate(TEXTS)]}
    body["params"] = {"output_types": ["dense"], "output_dtype": dtype}
    for url in gateways.https:
        headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
        answer = httpx.post(f"{url}/v1/encode/{BGE_M3}", content=msgpack.packb(body), headers=headers, timeout=60)
        found = read_msgpack(answer.content)
        assert answer.headers["X-Total-Time"]
        assert [each["id"] for each in found["items"]] == ["0", "1", "2"]
        assert [each["dense"]["values"].tobytes() for each in found["items"]] in expected


def test_openais_client_gets_the_vectors_of_triton(gateways):
    client = OpenAI(base_url=f"{gateways.https[0]}/v1", api_key="none")
    found = client.embeddings.create(model=MINILM, input=TEXTS[:1])
    expected = [each.encode(MINILM, TEXTS[:1])[0]["dense"].tobytes() for each in gateways.tritons]
    assert np.float32(found.data[0].embedding).tobytes() in expected
    assert MINILM in [model.id for model in client.models.list()]


def test_coheres_rerank_gets_the_scores_of_triton(gateways):
    expected = [each.score(CROSS_ENCODER, "capital", TEXTS)["scores"] for each in gateways.tritons]
    body = {"model": CROSS_ENCODER, "query": "capital", "documents": TEXTS}
    found = httpx.post(f"{gateways.https[1]}/v2/rerank", json=body, timeout=60).json()["results"]
    ranked = [(f"item-{each['index']}", np.float32(each["relevance_score"])) for each in found]
    assert ranked in [[(each["item_id"], np.float32(each["score"])) for each in scores] for scores in expected]


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


def test_methods_that_a_gateway_does_not_have_are_refused_by_name(gateways):
    client = triton.InferenceServerClient(gateways.grpcs[0])
    with pytest.raises(InferenceServerException, match="RepositoryIndex: the gateway has no model repository"):
        client.get_model_repository_index()
    with pytest.raises(InferenceServerException, match="SystemSharedMemoryStatus: the gateway has no such method"):
        client.get_system_shared_memory_status()
    failures = []
    client.start_stream(lambda result, error: failures.append(error))
    wait_for(lambda: failures)
    client.stop_stream()
    assert "ModelStreamInfer: the gateway has no streams" in str(failures[0])


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


def test_requests_of_many_clients_that_are_joined_keep_their_own_results(gateways):
    """Of different kinds and lengths at once: each result is that of its own texts."""
    texts = [[f"text {i} {j}" * (1 + i % 5) for j in range(1 + i % 3)] for i in range(200)]
    calls = [
        (lambda c, t: c.encode(BGE_M3, t, output_types=["dense", "sparse", "multivector"])),
        (lambda c, t: c.encode(BGE_M3, t, output_types=["dense"], output_dtype="int8")),
        (lambda c, t: c.score(CROSS_ENCODER, "capital", t)["scores"]),
    ]
    expected = [calls[i % 3](gateways.direct, each) for i, each in enumerate(texts)]
    with ThreadPoolExecutor(32) as clients:
        found = list(clients.map(lambda i: calls[i % 3](gateways.clients[i % 2], texts[i]), range(len(texts))))
    for one, other in zip(found, expected, strict=True):
        assert alike(one, other)


def alike(one: Any, other: Any) -> bool:
    """Return True if two results are equal up to the rounding of another batch, their times aside."""
    if isinstance(one, dict):
        names = one.keys() - {"timing"}
        return names == other.keys() - {"timing"} and all(alike(one[name], other[name]) for name in names)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, (np.ndarray, float)):
        rounding = 1 if np.result_type(one) == np.int8 else 1e-4
        return np.shape(one) == np.shape(other) and np.allclose(one, other, atol=rounding)
    return bool(one == other)


def test_a_request_beyond_its_time_is_a_deadline_error(gateways):
    body = {"items": [{"text": "a" * 100}] * 64}
    answer = httpx.post(f"{gateways.https[0]}/v1/encode/{MINILM}", json=body, headers={"X-Request-Timeout": "0.001"})
    assert answer.status_code in (503, 504)


def test_liveness_and_readiness(gateways):
    for path in ("/healthz", "/readyz", "/health", "/status", "/metrics", "/"):
        assert httpx.get(f"{gateways.https[0]}{path}").status_code == 200
    capacity = httpx.get(f"{gateways.https[0]}/health").json()
    num_workers = len(gateways.servers)
    found = capacity["type"], capacity["status"], capacity["cluster"]["worker_count"]
    assert found == ("gateway", "healthy", num_workers)
    assert sorted(each["name"] for each in capacity["workers"]) == [f"w{i}" for i in range(num_workers)]
    for worker in capacity["workers"]:
        assert (worker["pool"], worker["healthy"]) == ("default", True)
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


def test_all_requests_together_have_a_bound_of_memory(gateways):
    """By gRPC as by HTTP: what is beyond it is refused with a time to retry, and small requests are answered."""
    client = triton.InferenceServerClient(gateways.guarded[1])
    name, token = TINY.replace("/", "__"), {"authorization": "Bearer secret"}
    with pytest.raises(InferenceServerException, match="SIE_DOOR_MAX_MEMORY_BYTES") as refused:
        client.infer(name, infer_input(b"a" * 12_000_000), headers=token)
    assert "UNAVAILABLE" in str(refused.value.status())
    assert client.infer(name, infer_input(b"a"), headers=token).as_numpy("dense").shape == (1, 64)


def test_commands_call_a_gateway_by_its_address_and_a_token(gateways):
    (http, grpc), number = gateways.guarded, len(gateways.servers)
    few = ["--measurement-mode", "count_windows", "--measurement-request-count", "2"]
    perf = run(TINY, f"--url=grpc://{grpc}", "--auth-tokens=secret", *few, module="benchmarks.perf_analyzer")
    assert perf.returncode == 0, perf.stderr
    assert "Concurrency: 1, throughput:" in perf.stdout
    ready = f"{number} of {number} workers are ready"
    for token, said in (("secret", ready), ("wrong", "does not accept the bearer token")):
        status = run("status", f"--url={http}", f"--auth-tokens={token}")
        assert said in status.stdout + status.stderr
    assert "the bearer token is missing" in run("encode", TINY, "a", f"--url=grpc://{grpc}").stderr
    assert f"connect to Triton itself, at grpc://{grpc}" in run("encode", TINY, "a", f"--url={http}").stderr


def run(*arguments: str, module: str = "sie_triton.cli") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
