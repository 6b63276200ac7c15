"""Requests of text-embeddings-inference clients, before a real server."""

import httpx
import numpy as np
import pytest
import transformers
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.conftest import COLBERT, CROSS_ENCODER, MINILM, SPLADE
from tests.server.conftest import opened

QUERY, TEXTS = "what climbs?", ["Roses climb.", "A ship sails."]


@pytest.fixture(scope="module")
def tei(server):
    """Door whose TEI models are configured; by default the first capable model."""
    models = ",".join([MINILM, SPLADE, CROSS_ENCODER, COLBERT])
    with opened(server.settings, door_tei_model=models) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_embed(tei, ours):
    answer = tei.post("/embed", json={"inputs": TEXTS, "truncate": True})
    expected = ours.encode(MINILM, TEXTS)
    assert np.array_equal(np.array(answer.json(), np.float32), [each["dense"] for each in expected])
    assert int(answer.headers["x-compute-tokens"]) == sum(each["token_count"] for each in expected)
    one = tei.post("/embed", json={"inputs": TEXTS[0], "normalize": False, "prompt_name": "query", "dimensions": 8})
    options = {"normalize": False, "dimensions": 8}
    plain = ours.encode(MINILM, TEXTS[0], is_query=True, options=options)["dense"]
    assert np.array_equal(np.array(one.json(), np.float32), [plain])


def test_the_huggingface_inference_client_works(tei, ours):
    client = InferenceClient(str(tei.base_url), provider="hf-inference", token="none")
    found = client.feature_extraction(TEXTS, normalize=True, truncate=True, dimensions=8)
    assert np.array_equal(found, [each["dense"] for each in ours.encode(MINILM, TEXTS, options={"dimensions": 8})])
    with pytest.raises(HfHubHTTPError, match="prompt_name: the model has no prompt 'web'") as caught:
        client.feature_extraction("x", prompt_name="web")
    assert caught.value.response.status_code == 422


def test_embed_sparse(tei, ours):
    (row,) = tei.post("/embed_sparse", json={"inputs": "roses"}).json()
    expected = ours.encode(SPLADE, "roses")["sparse"]
    assert [each["index"] for each in row] == expected["indices"].tolist()
    assert np.array_equal(np.array([each["value"] for each in row], np.float32), expected["values"])


def test_embed_all(tei, ours):
    found = tei.post("/embed_all", json={"inputs": TEXTS, "prompt_name": "query"}).json()
    for rows, expected in zip(found, ours.encode(COLBERT, TEXTS, is_query=True), strict=True):
        assert np.array_equal(np.array(rows, np.float32), expected["multivector"])


def test_similarities_by_the_huggingface_inference_client(tei, ours):
    client = InferenceClient(f"{tei.base_url}/similarity", provider="hf-inference", token="none")
    found = client.sentence_similarity(QUERY, TEXTS)
    query, *texts = [each["dense"] for each in ours.encode(MINILM, [QUERY, *TEXTS])]
    assert found == pytest.approx([float(query @ text) for text in texts], abs=1e-6)


def test_rerank(tei, ours):
    found = tei.post("/rerank", json={"query": QUERY, "texts": TEXTS, "raw_scores": False, "return_text": True}).json()
    expected = ours.score(CROSS_ENCODER, QUERY, TEXTS)["scores"]
    assert [(f"item-{each['index']}", each["score"]) for each in found] == [
        (each["item_id"], each["score"]) for each in expected
    ]
    assert [each["text"] for each in found] == [TEXTS[each["index"]] for each in found]


def test_tokens_are_those_of_the_library(tei, minilm_directory):
    library = transformers.AutoTokenizer.from_pretrained(minilm_directory)
    found = tei.post("/tokenize", json={"inputs": TEXTS}).json()
    ids = [[token["id"] for token in tokens] for tokens in found]
    assert ids == library(TEXTS)["input_ids"]
    assert tei.post("/decode", json={"ids": ids}).json() == library.batch_decode(ids, skip_special_tokens=True)


def test_info(tei):
    info = tei.get("/info").json()
    assert (info["model_id"], info["auto_truncate"], info["max_input_length"]) == (MINILM, True, 256)
    assert "embedding" in info["model_type"]
