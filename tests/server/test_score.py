"""Score through the whole server, by every client."""

import json
import urllib.request

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from benchmarks.texts import texts
from sie_triton import Item, maxsim
from sie_triton.contract.names import triton_name
from tests.conftest import BGE_M3, COLBERT, CROSS_ENCODER, RERANKER

QUERY = "how do vines climb, and why?"
TEXTS = ["", "Stop. Look, listen!", "naïve 😀 日本語", *texts(10, seed=5)]
SCORED = [CROSS_ENCODER, RERANKER, COLBERT, BGE_M3]


def in_order(result):
    """The scores in the order of the items, which have no ids."""
    by_id = {entry["item_id"]: entry["score"] for entry in result["scores"]}
    return np.array([by_id[f"item-{i}"] for i in range(len(by_id))])


def test_a_cross_encoder(client, server):
    directory = server.settings.models_dir.parent / "cross-encoder" / "model"
    expected = CrossEncoder(str(directory), device="cpu").predict([(QUERY, text) for text in TEXTS])
    result = client.score(CROSS_ENCODER, QUERY, TEXTS)
    np.testing.assert_allclose(in_order(result), expected, atol=2e-5)
    assert [entry["rank"] for entry in result["scores"]] == list(range(len(TEXTS)))
    ranked = [entry["score"] for entry in result["scores"]]
    assert ranked == sorted(ranked, reverse=True)
    assert result["model"] == CROSS_ENCODER
    assert result["timing"]["total_ms"] > 0


def test_late_interaction_scores_match_client_side_maxsim(client):
    query = client.encode(COLBERT, QUERY, is_query=True, output_types=["multivector"])["multivector"]
    documents = client.encode(COLBERT, TEXTS, is_query=False, output_types=["multivector"])
    expected = maxsim(query, [document["multivector"] for document in documents])
    np.testing.assert_allclose(in_order(client.score(COLBERT, QUERY, TEXTS)), expected, rtol=1e-4)


@pytest.mark.parametrize("mode", ["dense", "sparse", "colbert", "hybrid"])
def test_every_mode_of_bge_m3(client, mode):
    """Scores equal the mode's formula over the outputs of encode."""
    query, *documents = client.encode(BGE_M3, [QUERY, *TEXTS])

    def sparse(document):
        weights = dict(zip(query["sparse"]["indices"].tolist(), query["sparse"]["values"].tolist(), strict=True))
        both = zip(document["sparse"]["indices"].tolist(), document["sparse"]["values"].tolist(), strict=True)
        return sum(weights.get(index, 0.0) * value for index, value in both)

    parts = {
        "dense": np.array([query["dense"] @ document["dense"] for document in documents]),
        "sparse": np.array([sparse(document) for document in documents]),
        "colbert": maxsim(query["multivector"], [d["multivector"] for d in documents]) / len(query["multivector"]),
    }
    parts["hybrid"] = 0.4 * parts["dense"] + 0.2 * parts["sparse"] + 0.4 * parts["colbert"]
    result = client.score(BGE_M3, QUERY, TEXTS, options={"score_mode": mode})
    np.testing.assert_allclose(in_order(result), parts[mode], rtol=1e-4, atol=1e-5)
    assert np.ptp(parts[mode]) > 1e-3
    if mode == "dense":
        np.testing.assert_allclose(in_order(client.score(BGE_M3, QUERY, TEXTS)), in_order(result), atol=1e-5)


def test_ids_come_back(client):
    items = [Item(text=text, id=f"doc-{i}") for i, text in enumerate(TEXTS)]
    result = client.score(CROSS_ENCODER, {"text": QUERY, "id": "q-7"}, items)
    assert result["query_id"] == "q-7"
    assert {entry["item_id"] for entry in result["scores"]} == {item["id"] for item in items}
    assert client.score(CROSS_ENCODER, {"text": QUERY, "id": 0}, []) == {
        "model": CROSS_ENCODER,
        "scores": [],
        "query_id": "0",
    }
    (one,) = client.score(CROSS_ENCODER, QUERY, Item(text="vines climb", id="0"))["scores"]
    assert one["item_id"] == "0"
    assert one["score"] == pytest.approx(client.score(CROSS_ENCODER, QUERY, "vines climb")["scores"][0]["score"])


@pytest.mark.parametrize("model", SCORED)
def test_scores_do_not_depend_on_batch_size(client, model):
    together = in_order(client.score(model, QUERY, TEXTS))
    alone = [client.score(model, QUERY, [text])["scores"][0]["score"] for text in TEXTS]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    assert np.ptp(together) > 1e-3
    bulk = in_order(client.score(model, QUERY, TEXTS * 40))
    np.testing.assert_allclose(bulk, np.tile(together, 40), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", SCORED)
def test_an_instruction_changes_the_scores(client, model):
    plain, told = client.score(model, QUERY, TEXTS), client.score(model, QUERY, TEXTS, instruction="find plants: ")
    assert np.abs(in_order(plain) - in_order(told)).max() > 1e-4


def test_raw_requests(server):
    """JSON over HTTP, and `token_count` of each pair."""
    body = {
        "inputs": [
            {"name": "query", "shape": [1], "datatype": "BYTES", "data": [QUERY]},
            {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b c"]},
        ]
    }
    for name in (triton_name(CROSS_ENCODER), triton_name(RERANKER), f"{triton_name(COLBERT)}-score"):
        request = urllib.request.Request(f"http://{server.http}/v2/models/{name}/infer", json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            outputs = {each["name"]: each for each in json.load(response)["outputs"]}
        assert outputs["scores"]["shape"] == [2]
        assert outputs["token_count"]["shape"] == [2]
        assert set(outputs) == {"scores", "token_count", "truncated", "timing_ms"}
