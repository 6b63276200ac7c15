"""Models that a remote server computes, served like ours: `serve` in front of a stand-in for SGLang."""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sentence_transformers import SentenceTransformer

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.errors import BusyError, InputError, ModelError
from sie_triton.records.status import records_of
from sie_triton.settings import Settings
from tests.conftest import fresh_settings, model_file
from tests.server.test_serve import port_flags, sie
from tests.support.models import save_bert, save_causal
from tests.support.openai_endpoint import Endpoint, last_states, next_tokens

DENSE, RERANKER = "test/far", "test/far-reranker"
KEY = "TEST_FAR_KEY"
TEXTS = [*texts(8, seed=5), "naïve 😀 日本語"]
QWEN3 = {"yes_token": "yes", "no_token": "no", "input_format": "qwen3"}
MAX_TOKENS = 48


@dataclass(frozen=True)
class Served:
    settings: Settings
    endpoint: Endpoint
    decoder: Path

    def client(self, timeout: float | None = None) -> SIEClient:
        return SIEClient(f"grpc://127.0.0.1:{self.settings.grpc_port}", timeout=timeout)

    def record(self, model: str) -> dict[str, int]:
        records = records_of(self.settings.status_dir, triton_name(model), "inference")
        return dict(max(records, key=lambda record: record["generation"]))

    def model(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in ask(self.settings, "/v1/models")["models"] if each["model"] == name]
        return found


def without_weights(save: Callable[..., Path], root: Path, tokenizer: Path, **options: Any) -> tuple[Path, Path]:
    """Save a Qwen3 model; return its directory, and a copy that has only the small files."""
    whole = save(root / "whole", tokenizer, "qwen3", **options)
    return whole, shutil.copytree(whole, root / "small", ignore=shutil.ignore_patterns("*.safetensors"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("remote")
    decoder, small_decoder = without_weights(save_bert, root / "d", minilm_directory, pooling="lasttoken")
    judge, small_judge = without_weights(save_causal, root / "j", minilm_directory)
    (root / "models").mkdir()
    settings = fresh_settings(root)
    with Endpoint(last_states(decoder), next_tokens(judge)) as endpoint:
        encode = {"encode": {"dense": {"dim": 64, "scales": True}}}
        for name, content in (
            (DENSE, model_file(DENSE, small_decoder, "sentence_transformer", encode)),
            (RERANKER, model_file(RERANKER, small_judge, "llm_reranker", {"score": {}}, loadtime=QWEN3)),
        ):
            model = yaml.safe_load(content)
            model["profiles"]["default"]["endpoint"] = {"url": endpoint.url, "model": "there", "api_key_env": KEY}
            model["max_sequence_length"] = MAX_TOKENS if name == DENSE else 512
            (root / "models" / f"{triton_name(name)}.yaml").write_text(yaml.safe_dump(model))
        flags = [f"--models-dir={root / 'models'}", f"--data-dir={settings.data_dir}", "--device=cpu"]
        ports = [settings.http_port, settings.grpc_port, settings.metrics_port, settings.controller_port]
        process = sie("serve", *flags, *port_flags(ports), **{KEY: "secret"})
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready == "SIE ready\n", process.communicate()[1]
            yield Served(settings, endpoint, decoder)
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def reference(served: Served) -> Any:
    """sentence-transformers on the same weights, with texts cut alike."""
    model = SentenceTransformer(str(served.decoder), device="cpu")
    model.max_seq_length = MAX_TOKENS
    return model.encode(TEXTS)


@contextmanager
def trouble(endpoint: Endpoint, name: str) -> Iterator[None]:
    endpoint.trouble = name
    try:
        yield
    finally:
        endpoint.trouble = ""


def test_vectors_are_those_of_the_weights(served, reference):
    with served.client() as client:
        results = client.encode(DENSE, TEXTS)
    found = np.stack([result["dense"] for result in results])
    assert (found * reference).sum(1).min() > 0.9999
    counts = [result["token_count"] for result in results]
    assert max(counts) == MAX_TOKENS  # cut here, and counted here
    sent = [item for path, asked in served.endpoint.asked if path == "/v1/embeddings" for item in asked["input"]]
    assert sorted(map(len, sent[-len(TEXTS) :])) == sorted(counts)
    assert served.endpoint.headers["Authorization"] == "Bearer secret"


def test_remote_vectors_are_truncated_and_quantised_locally(served, reference):
    with served.client() as client:
        cut = client.encode(DENSE, TEXTS[0], options={"dimensions": 16})["dense"]
        quantised = client.encode(DENSE, TEXTS[0], output_dtype="int8")
    wanted = reference[0, :16] / np.linalg.norm(reference[0, :16])
    np.testing.assert_allclose(cut, wanted, atol=1e-4)
    assert quantised["dense"].dtype == np.int8


def test_remote_scores_come_from_the_score_endpoint(served):
    with served.client() as client:
        scores = {
            each["item_id"]: each["score"] for each in client.score(RERANKER, "how do vines climb?", TEXTS)["scores"]
        }
        alone = client.score(RERANKER, "how do vines climb?", TEXTS[:1])["scores"][0]["score"]
    assert len(scores) == len(TEXTS)
    assert np.ptp(list(scores.values())) > 0.1
    assert min(abs(score - alone) for score in scores.values()) < 1e-3
    assert served.endpoint.asked[-1][0] == "/v1/score"


def test_a_remote_model_takes_no_memory_and_no_torch(served):
    with served.client() as client:
        client.encode(DENSE, TEXTS[0])
    found = served.model(DENSE)
    assert (found["state"], found["memory_bytes"]) == ("resident", 0)
    assert "libtorch" not in Path(f"/proc/{served.record(DENSE)['worker_pid']}/maps").read_text()


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("429", BusyError, "answers 429, too many requests; retry in 7 s"),
        ("400", InputError, "answers 400, the input is longer than the context"),
        ("500", ModelError, "answers 500"),
        ("html", ModelError, "the response is not JSON"),
        ("half", ModelError, "the response was cut off"),
    ],
)
def test_errors_of_the_endpoint_reach_the_client(served, name, kind, said):
    with served.client() as client:
        client.encode(DENSE, TEXTS[0])  # loaded, however long that takes
    with served.client(timeout=1) as client:
        with trouble(served.endpoint, name), pytest.raises(kind, match=said):
            client.encode(DENSE, TEXTS[0])
        assert len(client.encode(DENSE, TEXTS[0])["dense"]) == 64


def test_a_waiting_client_is_answered_after_the_endpoint_recovers(served):
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        client.encode(DENSE, TEXTS[0])
        worker = served.record(DENSE)["worker_pid"]
        served.endpoint.stop()
        try:
            waiting = pool.submit(client.encode, DENSE, TEXTS[1])
            time.sleep(0.3)
            assert not waiting.done()
        finally:
            served.endpoint.start()
        assert len(waiting.result(timeout=10)["dense"]) == 64
    assert served.record(DENSE)["worker_pid"] == worker
