"""/openapi.json describes the other dialects' routes correctly."""

import asyncio

import pytest
from openapi_spec_validator import validate

from tests.pure.doors.test_doors_capable import EMBEDDER, OTHER, RERANKER
from tests.pure.doors.test_doors_hostile import FIELDS, Triton, client_before


def document_and_answers(*specs):
    """The document, and responses to all of its examples, by path."""

    async def ask():
        async with client_before(Triton(*specs)) as client:
            document = (await client.get("/openapi.json")).json()
            examples = {path: example_of(document["paths"][path]) for path in FIELDS}
            given = {path: body for path, body in examples.items() if body is not None}
            return document, {path: await client.post(path, json=body) for path, body in given.items()}

    return asyncio.run(ask())


def example_of(methods):
    return methods["post"]["requestBody"]["content"]["application/json"].get("example")


def test_every_example_works():
    _, answers = document_and_answers(OTHER, RERANKER)
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(FIELDS, 200)


def test_unsupported_routes_have_no_example():
    _, answers = document_and_answers(OTHER, EMBEDDER)
    assert [*answers] == ["/v1/embeddings", "/embed_sparse"]


@pytest.mark.parametrize("specs", [(), (OTHER,), (OTHER, EMBEDDER, RERANKER)], ids=len)
def test_the_document_is_valid(specs):
    validate(document_and_answers(*specs)[0])


def test_answers_have_the_fields_that_are_promised():
    document, answers = document_and_answers(OTHER, RERANKER)
    for path in ("/v1/embeddings", "/v1/rerank", "/v2/rerank"):
        promised = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert set(promised["properties"]) <= answers[path].json().keys()
        assert "429" in document["paths"][path]["post"]["responses"]
    assert {*map(int, document["paths"]["/embed"]["post"]["responses"])} > {200, 422, 424, 429, 503}
