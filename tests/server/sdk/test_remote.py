"""Models that a remote server computes, served like ours: `serve` in front of a stand-in for SGLang."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.texts import texts
from tests.server.sdk.conftest import DENSE, Provoked
from tests.support.controller import wait_for

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


def test_a_remote_model_takes_no_memory_and_no_torch(served):
    with served.client() as client:
        client.encode(DENSE, TEXTS[0])
    wait_for(lambda: served.model(DENSE)["state"] == "resident")
    assert served.model(DENSE)["memory_bytes"] == 0
    assert "libtorch" not in Path(f"/proc/{served.record(DENSE)['worker_pid']}/maps").read_text()
