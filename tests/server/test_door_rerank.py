"""The `cohere` package at the door, and what Jina's clients send, before a real server."""

import cohere
import pytest

from tests.conftest import COLBERT, CROSS_ENCODER

QUERY = "what climbs on vines?"
TEXTS = ["Roses climb.", "A ship sails.", "Vines are what grapes climb on.", ""]


@pytest.fixture(scope="module")
def expected(ours):
    """(index, score), the best first, and tokens."""
    found = ours.score(CROSS_ENCODER, QUERY, TEXTS)
    ranked = [(int(each["item_id"].removeprefix("item-")), each["score"]) for each in found["scores"]]
    return ranked, found["token_count"]


def pairs(answer):
    return [(each.index, each.relevance_score) for each in answer.results]


def test_the_second_version(door, expected):
    client = cohere.ClientV2("none", base_url=door)
    found = client.rerank(model=CROSS_ENCODER, query=QUERY, documents=TEXTS)
    assert pairs(found) == expected[0]
    assert found.id
    assert (found.meta.api_version.version, found.meta.billed_units.search_units) == ("2", 1)
    assert pairs(client.rerank(model=CROSS_ENCODER, query=QUERY, documents=TEXTS, top_n=2)) == expected[0][:2]
    assert len(client.rerank(model=COLBERT, query=QUERY, documents=TEXTS[:2]).results) == 2


def test_the_first_version(door, expected):
    client = cohere.Client("none", base_url=door)
    documents = [{"text": text, "name": str(i)} for i, text in enumerate(TEXTS)]
    found = client.rerank(model=CROSS_ENCODER, query=QUERY, documents=documents, return_documents=True)
    assert pairs(found) == expected[0]
    assert [each.document.text for each in found.results] == [TEXTS[index] for index, _ in expected[0]]
    by_name = client.rerank(model=CROSS_ENCODER, query=QUERY, documents=documents, rank_fields=["name", "text"])
    assert dict(pairs(by_name)) != dict(expected[0])


def test_jinas_client_can_rerank(http, expected):
    body = {"model": CROSS_ENCODER, "query": QUERY, "documents": TEXTS, "top_n": 3, "return_documents": True}
    found = http.post("/v1/rerank", json=body).json()
    assert [(each["index"], each["relevance_score"]) for each in found["results"]] == expected[0][:3]
    assert found["results"][0]["document"] == {"text": TEXTS[expected[0][0][0]]}
    assert found["usage"]["total_tokens"] == expected[1]
    assert (found["model"], found["object"]) == (CROSS_ENCODER, "list")
