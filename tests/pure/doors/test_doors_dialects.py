"""/openapi.json describes the other dialects' routes correctly."""

import asyncio
import re

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as tritonclient
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from sie_triton.client.calls import EncodeCall, ExtractCall, ScoreCall
from sie_triton.doors import embed, openai, rerank, tei, vllm
from sie_triton.doors.app import application
from sie_triton.doors.endpoint import Door
from sie_triton.errors import InputError
from sie_triton.settings import Settings
from tests.pure.doors.test_doors_capable import EMBEDDER, OTHER, RERANKER
from tests.pure.doors.test_doors_capable import Triton as Models
from tests.pure.doors.test_doors_capable import spec as specified
from tests.support.doors import TIMING
from tests.support.stages import spec

EMBEDDINGS = ("/v1/embeddings", "/embeddings", "/v1/embed", "/v2/embed")

# The examples of these need the files of a tokenizer; SIE's own routes have tests of their own.
LEFT_OUT = (
    *("/tokenize", "/decode", "/v1/encode/{model}", "/v1/score/{model}", "/v1/extract/{model}"),
    *("/v1/files", "/v1/batches", "/v1/batches/{batch_id}/cancel"),
)


class Triton(Models):
    """Makes of each request what is sent to a real one, and answers."""

    async def encode(self, model, items, seconds, parameters):
        assert parameters["output_types"] in ("dense", "sparse", "multivector")
        call = EncodeCall(tritonclient, model, items, {"options": parameters})
        call.arguments(call.pieces[0])
        none = np.zeros(0, np.float32)
        sparse = {"indices": none, "values": none}
        vectors = {"dense": none, "sparse": sparse, "multivector": none.reshape(0, 8)}
        return [{**vectors, "token_count": 1, "timing": TIMING} for _ in items]

    async def score(self, model, query, items, seconds, parameters):
        call = ScoreCall(tritonclient, model, query, items, {"options": parameters})
        call.arguments(call.pieces[0])
        scores = [{"item_id": f"item-{i}", "score": 0.5, "rank": i} for i in range(len(items))]
        return {"model": model, "scores": scores, "token_count": 1, "timing": TIMING}

    async def extract(self, model, items, labels, entities, seconds, parameters):
        call = ExtractCall(tritonclient, model, items, labels, entities, {"options": parameters})
        call.arguments(call.pieces[0])
        classes = [{"label": "good", "score": 1.0}]
        return [{"classifications": classes, "token_count": 1, "timing": TIMING} for _ in items]


TOKENS = specified("a/tokens", "encode", multivector=8)
CLASSIFIER = spec(model="a/classifier", family="sequence_classification", tasks=("extract",), dims={})


def client_before(triton):
    door = Door(Settings(), triton)
    door.served = triton
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=application(door)), base_url="http://localhost")


def document_and_answers(*specs):
    """The document, and responses to all of its examples, by path."""

    async def ask():
        async with client_before(Triton(*specs)) as client:
            document = (await client.get("/openapi.json")).json()
            posts = {path: methods for path, methods in document["paths"].items() if "post" in methods}
            examples = {path: example_of(posts[path]) for path in posts.keys() - {*LEFT_OUT}}
            given = {path: body for path, body in examples.items() if body is not None}
            return document, {path: await client.post(path, json=body) for path, body in given.items()}

    return asyncio.run(ask())


def test_the_page_lists_the_fields_of_every_body_and_loads_nothing():
    async def ask():
        async with client_before(Triton(OTHER)) as client:
            return (await client.get("/openapi.json")).json(), await client.get("/docs")

    document, page = asyncio.run(ask())
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert not any(word in page.text for word in ("src=", "<script", "<link", "http://", "https://", "@import"))
    parts = {part.partition("<")[0]: part for part in page.text.split("<h2>")[1:]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = set(re.findall(r"<tr><td><code>(.*?)</code>", parts[f"{method.upper()} {path}"]))
            for body in operation.get("requestBody", {}).get("content", {}).values():
                assert body["schema"]["properties"].keys() <= shown


@pytest.mark.parametrize(("specs", "status"), [((OTHER, RERANKER), 200), ((OTHER, EMBEDDER, RERANKER), 424)])
def test_info_is_of_the_model_of_the_route_without_a_name(specs, status):
    """Or both name the same problem."""

    async def ask():
        async with client_before(Triton(*specs)) as client:
            return await client.get("/info"), await client.post("/", json={"inputs": "a"})

    info, answer = asyncio.run(ask())
    assert (info.status_code, answer.status_code) == (status, status)
    assert info.json()["model_id"] == "a/other" if status == 200 else info.json() == answer.json()


def example_of(methods):
    return methods["post"]["requestBody"]["content"].get("application/json", {}).get("example")


def test_every_example_works():
    _, answers = document_and_answers(OTHER, RERANKER, CLASSIFIER, TOKENS)
    assert "/similarity" in answers
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)


def test_unsupported_routes_have_no_example():
    _, answers = document_and_answers(OTHER, EMBEDDER)
    assert answers.keys() == {*EMBEDDINGS, "/embed_sparse", "/pooling"}


@pytest.mark.parametrize("specs", [(), (OTHER,), (OTHER, EMBEDDER, RERANKER)], ids=len)
def test_the_document_is_valid(specs):
    validate(document_and_answers(*specs)[0])


def test_answers_have_the_fields_that_are_promised():
    document, answers = document_and_answers(OTHER, RERANKER, CLASSIFIER)
    for path in ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/classify", "/pooling"):
        promised = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert set(promised["properties"]) <= answers[path].json().keys()
        Draft202012Validator(promised).validate(answers[path].json())
        assert "429" in document["paths"][path]["post"]["responses"]
    assert {*map(int, document["paths"]["/embed"]["post"]["responses"])} > {200, 422, 424, 429, 503}


BODIES = {
    "/v1/embeddings": (openai.Embeddings, {"model": "a/other", "input": "x"}),
    "/v2/embed": (embed.Embed, {"model": "a/other", "texts": ["x"]}),
    "/v2/rerank": (rerank.Rerank, {"model": "a/reranker", "query": "q", "documents": ["a"]}),
    "/embed": (tei.Embed, {"inputs": "x"}),
    "/rerank": (tei.Rerank, {"query": "q", "texts": ["a"]}),
    "/predict": (tei.Predict, {"inputs": "x"}),
    "/similarity": (tei.Similarity, {"inputs": {"source_sentence": "x", "sentences": ["y"]}}),
    "/score": (vllm.Score, {"model": "a/reranker", "text_1": "x", "text_2": "y"}),
    "/classify": (vllm.Classify, {"model": "a/classifier", "input": "x"}),
    "/pooling": (vllm.Pooling, {"model": "a/other", "input": "x"}),
}
DEPENDING = {embed.Embed: ("inputs",), openai.Embeddings: ("input", "messages")}
WORDS = (
    *("float", "base64", "int8", "NONE", "Left", "retrieval.query", "clustering", "query", "1", "true"),
    *("error", "truncate_text", "embed", "token_classify", "float32", "little", "big"),
)
NUMBERS = (0, 1, 8, -1, 0.0, 1.0, 8.0, 8.5, 1e300, 2**31 - 1, 2**31)
LISTS = ([], ["x"], ["text", "title"], ["x", "x"], ["x"] * 17, ["x" * 101], ["int8"], [3], [None], [["x"]], ["x", 3])
NESTED = (
    *({"truncate": value} for value in (False, None, 1)),
    *({"prompt_name": "query", "truncation_direction": "Left"}, {"normalize": True}),
    *({"source_sentence": "x", "sentences": value} for value in (["y"], [], "y", ["y"] * 10_001, [3])),
    *({"source_sentence": 3, "sentences": ["y"]}, {"sentences": ["y"]}),
)
MODES = ({"mode": "disabled"}, {"mode": "on"})
VALUES = (None, True, False, {}, *NESTED, *MODES, "", *WORDS, *NUMBERS, *LISTS, ["x"] * 10_001)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_is_read_if_its_document_allows_it_and_else_the_error_names_the_field(path):
    """One field at a time; not those that depend on the model, or on each other."""
    document, _ = document_and_answers(OTHER, EMBEDDER, RERANKER, CLASSIFIER)
    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema = Draft202012Validator(content["application/json"]["schema"])
    body, usual = BODIES[path]
    depending = {"model", "output_dimension", *DEPENDING.get(body, ())}
    for name in body.model_fields.keys() - depending:
        for value in VALUES:
            given = {**usual, name: value}
            assert (blamed(body, given) == "") == schema.is_valid(given), (name, value)
            assert blamed(body, given) in ("", name), value


def blamed(body, content):
    """Return the field that a body is refused for, without its index; "" if the body is read."""
    try:
        read = body.read(content, max_items=10_000)
        if body is rerank.Rerank:
            read.texts()
    except InputError as error:
        return re.split(r"[.\[]", error.field)[0]
    return ""


# Bodies that are refused for a field that no schema can refuse: it depends on others, or is not the route's.
REFUSED = [
    *(("/v1/embeddings", {"model": value}, "model") for value in (None, 3)),
    ("/v1/embeddings", {"output_dtype": "int8"}, "output_dtype"),
    ("/v1/embeddings", {"chunk_tokens": 64}, "chunk_tokens"),
    ("/v1/embeddings", {"late_chunking": True}, "late_chunking"),
    ("/v2/embed", {"texts": None}, "texts"),
    ("/v2/embed", {"images": ["data:image/png;base64,eA=="]}, "images"),
    ("/v2/embed", {"output_dimension": 0}, "output_dimension"),
    ("/v2/embed", {"output_dtype": "int8"}, "output_dtype"),
    ("/v2/embed", {"input_type": "search_query", "is_query": False}, "is_query"),
    ("/v2/embed", {"input_type": "search_document", "is_query": 0}, "is_query"),
    ("/v2/rerank", {"documents": ["a", {"image": "x"}]}, "documents[1]"),
    ("/v2/rerank", {"documents": [{"title": 3}], "rank_fields": ["title", "body"]}, "documents[0]"),
    ("/v2/rerank", {"truncate_prompt_tokens": -1, "overflow_policy": "error"}, "truncate_prompt_tokens"),
    *(("/predict", {"inputs": value}, "inputs") for value in (["a", "b"], [["a"], ["a", "b"]], [["a"], []])),
    ("/similarity", {"inputs": {"source_sentence": "q", "sentences": ["a", 3]}}, "inputs.sentences[1]"),
    ("/similarity", {"parameters": {"normalize": True}}, "parameters.normalize"),
    ("/similarity", {"normalize": False}, "normalize"),
    ("/score", {"text_1": None}, "text_1"),
    ("/score", {"queries": ["q"]}, "text_1"),
    ("/score", {"text_1": ["q", "q", "q"], "text_2": ["a", "b"]}, "text_1"),
    ("/score", {"text_1": ["q", "q"], "text_2": "a"}, "text_1"),
    ("/classify", {"threshold": 0.5}, "threshold"),
    ("/classify", {"ranked": True}, "ranked"),
    ("/pooling", {"output_types": ["dense"]}, "output_types"),
]


@pytest.mark.parametrize(("path", "change", "field"), REFUSED)
def test_a_field_that_contradicts_others_or_the_route_is_named(path, change, field):
    body, usual = BODIES[path]
    with pytest.raises(InputError) as caught:
        use(body.read({**usual, **change}, max_items=100))
    assert caught.value.field == field


def use(read):
    """Read all of a body, as its route does."""
    read.options()
    if isinstance(read, rerank.Rerank):
        read.texts()
    if isinstance(read, vllm.Score):
        read.lists()
    if isinstance(read, embed.Embed):
        assert read.content
