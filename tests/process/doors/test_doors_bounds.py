"""Values of clients that are deep, long or of an odd type: refused with the field's name, and never a fault."""

import json

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from pydantic import ValidationError

from sie_triton.client.failures import NotServed
from sie_triton.contract.parameters import Parameter, check_parameters, shown
from sie_triton.contract.spec import ModelSpec
from sie_triton.doors import embed, openai, rerank, tei, vllm
from sie_triton.doors.fields import LONGEST_MODEL, MAX_OPTIONS, check_query
from sie_triton.errors import InputError
from tests.pure.doors.test_doors_dialects import BODIES
from tests.support.doors import door_of, post

USUAL = dict(BODIES.values())
DEEP = [
    (openai.Embeddings, "encoding_format"),
    (openai.Embeddings, "model"),
    (openai.Embeddings, "input"),
    (rerank.Rerank, "top_n"),
    (rerank.Rerank, "rank_fields"),
    (rerank.Rerank, "relevant_spans"),
    (tei.Embed, "prompt_name"),
    (tei.Embed, "truncation_direction"),
    (tei.Rerank, "raw_scores"),
    (tei.Similarity, "inputs"),
    (tei.Similarity, "parameters"),
    (vllm.Score, "truncate_prompt_tokens"),
]


def nested(depth):
    """List nested to the given depth."""
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(("body", "field"), DEEP, ids=lambda each: getattr(each, "__module__", each))
def test_a_deep_value_is_named(body, field):
    with pytest.raises(InputError, match=f"^{field}"):
        body.read({**USUAL[body], field: nested(100_000)}, 10)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (openai.Embeddings, "input"),
        (embed.Embed, "texts"),
        (embed.Embed, "images"),
        (embed.Embed, "embedding_types"),
        (rerank.Rerank, "rank_fields"),
        (tei.Embed, "inputs"),
        (tei.Rerank, "texts"),
        (vllm.Score, "text_1"),
    ],
)
def test_the_first_bad_entry_of_a_list_ends_its_check(body, field):
    with pytest.raises(ValidationError) as caught:
        body.model_validate({**USUAL[body], field: [0.5] * 50_000}, context=100_000)
    assert caught.value.error_count() == 1
    assert caught.value.errors()[0]["loc"] == (field, 0)


def test_a_deep_request_parameter_is_named():
    with pytest.raises(InputError, match=r"^parameter dimensions: a value of type list is not allowed"):
        Parameter("dimensions", int, minimum=1).check(nested(100_000))


def test_errors_repeat_values_in_short():
    assert len(shown("\0" * 10_000_000)) < 200
    assert shown("as it is") == "'as it is'"
    with pytest.raises(InputError) as caught:
        check_parameters({"x" * 1_000_000: 1}, {})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"labels": np.array(["a", "b"])}, "labels: must be a list"),
        ({"labels": np.zeros(())}, "labels: must be a list"),
        ({"labels": ["a", np.zeros(2)]}, "labels: must be a list of strings"),
        ({"labels": ["a"] * 5000}, "labels: has 5000 labels; send at most 4096"),
        ({"options": np.zeros(2)}, "params.options: must be an object"),
    ],
)
def test_odd_parameters_of_an_extraction_are_named(params, message):
    data = msgpack.packb({"items": ["a"], "params": params}, default=_packed)
    headers = {"Content-Type": "application/msgpack"}
    found = post(door_of()[0], None, "/v1/extract/org/m", json=None, content=data, headers=headers)
    assert (found.status_code, message in found.text) == (400, True), found.text


def _packed(value):
    return msgpack_numpy.encode(value) if value.dtype.kind != "U" else msgpack_numpy.encode(value.view(np.uint32))


@pytest.mark.parametrize("types", [nested(50), {"dense": 1}, [1], 3])
def test_odd_output_types_are_named(types):
    found = post(door_of()[0], {"items": ["a"], "params": {"output_types": types}})
    assert (found.status_code, "output_types: must be a list of strings" in found.text) == (400, True), found.text


def test_a_deep_document_is_refused_before_it_is_scored():
    body = {"model": "m", "query": "q", "documents": [{"text": "a", "more": nested(300)}], "return_documents": True}
    found = post(door_of()[0], body, "/v1/rerank")
    assert (found.status_code, found.json()["code"]) == (400, "INVALID_INPUT")


def test_names_and_parameters_are_bounded():
    long = "x" * (LONGEST_MODEL + 1)
    with pytest.raises(InputError, match=r"^model: must have at most 512 characters .*513 characters"):
        openai.Embeddings.read({"model": long, "input": "x"}, 10)
    many = {f"p{i}": i for i in range(MAX_OPTIONS + 1)}
    with pytest.raises(InputError, match=r"^body: has 65 request parameters"):
        openai.Embeddings.read({"model": "m", "input": "x", **many}, 10)
    with pytest.raises(InputError, match=r"^body: has 65 request parameters"):
        openai.Embeddings.read({"input": [3], **many}, 10)  # before the fields are read
    with pytest.raises(InputError, match=r"^body: has 65 request parameters"):
        tei.Similarity.read({**USUAL[tei.Similarity], "parameters": many}, 10)
    with pytest.raises(InputError, match=r"^parameters\.x{80}: is not read here$"):
        tei.Similarity.read({**USUAL[tei.Similarity], "parameters": {"x" * 1_000_000: 1}}, 10)
    with pytest.raises(InputError, match=r"^instruction: has 1000001 characters"):
        openai.Embeddings.read({"model": "m", "input": "x", "instruction": "x" * 1_000_001}, 10).options()
    for verb, more in (("encode", {}), ("score", {"query": "q"}), ("extract", {})):
        assert "model: has 513 characters" in post(door_of()[0], {"items": ["a"], **more}, f"/v1/{verb}/{long}").text


def test_a_query_counts_once_for_each_item():
    check_query("x" * 10, ["a"] * 10, "query", 100)
    check_query(b"x" * 160, ["a"] * 10, "query", 100)
    for query in ("x" * 11, b"x" * 176):
        with pytest.raises(InputError, match=f"^query: {len(query)} (characters|bytes) for each of 10 items"):
            check_query(query, ["a"] * 10, "query", 100)


def test_a_query_and_its_items_are_bounded_together():
    bodies = {
        "/v1/score/org/m": {"query": "x" * 100, "items": ["a"] * 11},
        "/v1/rerank": {"model": "org/m", "query": "x" * 100, "documents": ["a"] * 11},
        "/rerank": {"query": "x" * 100, "texts": ["a"] * 11},
        "/score": {"model": "org/m", "queries": "x" * 100, "items": ["a"] * 11},
        "/v1/extract/org/m": {"items": ["a"] * 11, "params": {"labels": ["x" * 50] * 2}},
    }
    for path, body in bodies.items():
        found = post(door_of(door_max_body_bytes=1000)[0], body, path)
        assert found.status_code in (400, 422), path
        assert "100 characters for each of 11 items" in found.text, path


def test_a_rate_of_samples_is_an_integer():
    sound = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": bytes(8)}
    body = {"items": [{"audio": {"data": sound, "sample_rate": [[[1]]]}}]}
    headers = {"Content-Type": "application/msgpack"}
    found = post(door_of()[0], None, json=None, content=msgpack.packb(body), headers=headers)
    assert "items[0].audio.sample_rate: must be an integer" in json.loads(found.text)["detail"]["message"]


class Models:
    """Stand-in for the door's knowledge of the served models."""

    async def spec(self, name):
        if name == "a/gone":
            raise NotServed("model: a/gone is not served")
        tasks = {"a/ranker": ("score",), "a/sparse": ("encode",)}[name]
        return ModelSpec(name, "there", "family", {"sparse": 9} if "encode" in tasks else {}, 512, 1024, tasks=tasks)

    async def recent(self, name, seconds):
        return await self.spec(name)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/encode/a/ranker", {"items": ["a"]}, "model: a/ranker does not encode; its tasks: score"),
        ("/v1/encode/a/sparse", {"items": [{"image": "AAAA"}]}, "image: a/sparse does not read it; it reads text"),
        ("/v1/encode/a/sparse", {"items": ["a"]}, "what Triton says"),
        ("/v1/embeddings", {"model": "a/ranker", "input": "x"}, "model: a/ranker does not encode; its tasks: score"),
        ("/v1/embeddings", {"model": "a/sparse", "input": "x"}, "model: a/sparse does not return dense vectors"),
    ],
)
def test_a_model_of_another_kind_is_described(path, body, message):
    door, backend = door_of()
    backend.failure, door.served = InputError("what Triton says"), Models()
    found = post(door, body, path)
    assert (found.status_code, message in found.text) == (400, True), found.text
