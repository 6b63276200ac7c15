"""Models that a remote server computes, served like ours: `serve` in front of a stand-in for SGLang."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.texts import texts
from sie_triton.errors import BusyError, InputError, ModelError
from tests.server.sdk.conftest import DENSE, RERANKER, Provoked

TEXTS = [*texts(8, seed=5), "naïve 😀 日本語"]
MAX_TOKENS = 256  # of the model file
LONG = "vines " * MAX_TOKENS


@pytest.fixture(scope="module")
def reference(served: Provoked) -> Any:
    """sentence-transformers on the same weights, with texts cut alike."""
    model = SentenceTransformer(str(served.decoder), device="cpu")
    model.max_seq_length = MAX_TOKENS
    return model.encode([*TEXTS, LONG])


def test_vectors_are_those_of_the_weights(served, reference):
    with served.client() as client:
        results = client.encode(DENSE, [*TEXTS, LONG])
    found = np.stack([result["dense"] for result in results])
    assert (found * reference).sum(1).min() > 0.9999
    counts = [result["token_count"] for result in results]
    assert max(counts) == MAX_TOKENS  # cut here, and counted here
    sent = [item for path, asked in served.endpoint.asked if path == "/v1/embeddings" for item in asked["input"]]
    assert sorted(map(len, sent[-len(counts) :])) == sorted(counts)
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
        with served.endpoint.in_trouble(name), pytest.raises(kind, match=said):
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
