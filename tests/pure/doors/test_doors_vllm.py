"""vLLM's bodies → requests; results → its responses."""

import numpy as np
import pytest

from sie_triton.contract import VERBS, check_parameters
from sie_triton.doors.embed import Embed
from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.model_choice import Capable
from sie_triton.doors.openai import Embeddings
from sie_triton.doors.served import ServedModels
from sie_triton.doors.tei_bodies import Embed as TeiEmbed
from sie_triton.doors.vllm import PAIRS, Cosines, Pooling, error
from sie_triton.errors import InputError
from sie_triton.models.families import model_of
from tests.support.doors import TIMING, door_of, post
from tests.support.stages import spec

SCORE = {"model": "org/m", "text_1": "q", "text_2": ["a", "bb"]}
POOLING = {"model": "org/m", "input": ["a", "b"]}


@pytest.fixture
def serving(monkeypatch):
    """A door whose only model is org/m, a function that changes it, and the backend."""

    def serve(**changes):
        async def read(self, name):
            return spec(model="org/m", **changes)

        monkeypatch.setattr(ServedModels, "spec", read)

    serve()
    return *door_of(), serve


@pytest.fixture
def scoring(serving, monkeypatch):
    """A door, and the calls of its backend, where a pair's score are the lengths of its texts."""
    door, backend, serve = serving
    serve(tasks=("score",), dims={})
    calls = []

    async def score(model, query, items, seconds, parameters):
        calls.append((query["text"], [item["text"] for item in items], parameters))
        if "bad" in calls[-1][1]:
            raise InputError.at(f"text[{calls[-1][1].index('bad')}]", "is bad")
        marks = [{"truncated": True} if "long" in item["text"] else {} for item in items]
        scores = [len(query["text"]) + len(item["text"]) / 16 for item in items]
        entries = [{"item_id": f"item-{i}", "score": score, "rank": 0, **marks[i]} for i, score in enumerate(scores)]
        return {"model": model, "scores": entries[::-1], "token_count": 3, "timing": TIMING}

    monkeypatch.setattr(backend, "score", score)
    return door, calls


@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_a_text_is_scored_with_each_of_several(scoring, path, names):
    door, calls = scoring
    body = {"model": "org/m", **dict(zip(names, ("q", ["a", "bb"]), strict=True)), "user": "u", "instruction": "judge"}
    answer = post(door, body, path).json()
    assert calls == [("q", ["a", "bb"], {"instruction": "judge"})]
    assert answer["data"] == [
        {"index": 0, "object": "score", "score": 1 + 1 / 16},
        {"index": 1, "object": "score", "score": 1 + 2 / 16},
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "prompt_tokens_details": None}
    assert (answer["object"], answer["model"], answer["usage"]) == ("list", "org/m", usage)
    assert answer["id"].startswith("score-")
    assert type(answer["created"]) is int


def test_lists_of_equal_length_are_scored_pair_by_pair(scoring):
    door, calls = scoring
    answer = post(door, SCORE | {"text_1": ["q", "qq"]}, "/score").json()
    assert sorted(calls) == [("q", ["a"], {}), ("qq", ["bb"], {})]
    assert [each["score"] for each in answer["data"]] == [1 + 1 / 16, 2 + 2 / 16]
    assert answer["usage"]["total_tokens"] == 6
    refused = post(door, SCORE | {"text_1": ["q", "qq"], "text_2": ["a", "bad"]}, "/score")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "text[1]: is bad")


def test_a_text_that_is_too_long_is_an_error_unless_it_may_be_truncated(scoring, serving):
    door, _ = scoring
    for queries in ("q", ["q", "q"]):
        body = SCORE | {"text_1": queries, "text_2": ["a", "long"]}
        refused = post(door, body, "/score")
        assert (refused.status_code, refused.headers["x-sie-error-code"]) == (400, "INPUT_TOO_LONG")
        assert refused.json()["error"]["param"] == "text_2"
        assert post(door, body | {"truncate_prompt_tokens": -1}, "/score").status_code == 200
    door, backend, _ = serving
    backend.cut = {1}
    refused = post(door, POOLING, "/pooling")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert post(door, POOLING | {"truncate_prompt_tokens": -1}, "/pooling").status_code == 200


def test_a_model_that_encodes_answers_cosines_of_each_pair(serving, monkeypatch):
    door, backend, _ = serving
    asked = []

    async def encode(model, items, seconds, parameters):
        asked.append((items, parameters))
        vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)[: len(items)]
        return [{"dense": vector, "token_count": 1, "timing": TIMING} for vector in vectors]

    monkeypatch.setattr(backend, "encode", encode)
    alone = post(door, SCORE | {"dimensions": 2}, "/score").json()
    options = {"output_types": "dense", "normalize": True, "dimensions": 2}
    assert asked == [([{"text": text} for text in ("q", "a", "bb")], options)]
    assert [each["score"] for each in alone["data"]] == pytest.approx([0, 0.6])
    pairs = post(door, SCORE | {"text_1": ["q", "qq"]}, "/score").json()
    assert [each["score"] for each in pairs["data"]] == pytest.approx([0.6, 0.6])
    assert pairs["usage"]["total_tokens"] == 4
    refused = post(door, SCORE | {"normalize": False}, "/score")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "normalize")


ENCODED = {
    "/v1/embeddings": ({"model": "org/m", "input": "a"}, Embeddings),
    "/v2/embed": ({"model": "org/m", "texts": ["a"]}, Embed),
    "/pooling": (POOLING, Pooling),
    "/score": (SCORE, Cosines),
    "/embed": ({"inputs": "a"}, TeiEmbed),
}


@pytest.mark.parametrize("path", ENCODED)
def test_an_unknown_parameter_is_refused_with_those_that_the_route_takes(serving, monkeypatch, path):
    async def chosen(self, what):
        return spec(model="org/m")

    monkeypatch.setattr(Capable, "spec", chosen)
    (door, backend, _), (body, kind) = serving, ENCODED[path]
    known = VERBS["encode"].all_parameters(model_of(spec()))
    with pytest.raises(InputError) as caught:
        check_parameters({"no_such": 1}, known)
    backend.failure = caught.value
    refused = post(door, body | {"no_such": 1}, path)
    listed = set(refused.text.partition("allowed are ")[2].partition('"')[0].split(", "))
    assert refused.status_code in (400, 422)
    assert listed == known.keys() - kind.hidden()


@pytest.mark.parametrize(("cut", "field"), [({0}, "text_1"), ({2}, "text_2")])
def test_a_text_of_a_pair_that_is_too_long_to_encode_is_named(serving, cut, field):
    door, backend, _ = serving
    backend.cut = cut
    refused = post(door, SCORE, "/score")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", POOLING, "input"),
        ("/v1/rerank", {"model": "org/m", "query": "q", "documents": ["a", "b"]}, "documents"),
        ("/v2/rerank", {"model": "org/m", "query": "q", "documents": ["a", "b"]}, "documents"),
    ],
)
def test_other_routes_truncate_unless_told_not_to(serving, path, body, field):
    door, backend, _ = serving
    backend.cut = {1}
    for given in ({}, {"truncate_prompt_tokens": -1}, {"overflow_policy": "truncate_text"}):
        assert post(door, body | given, path).status_code == 200
    refused = post(door, body | {"overflow_policy": "error"}, path)
    assert (refused.status_code, refused.headers["x-sie-error-code"]) == (400, "INPUT_TOO_LONG")
    assert f"{field}[1]: is longer" in refused.text


def test_classes_are_answered_in_the_order_of_the_labels(serving, monkeypatch):
    door, backend, serve = serving
    serve(family="sequence_classification", tasks=("extract",), dims={})
    asked = []

    async def extract(model, items, labels, entities, seconds, parameters):
        asked.append((model, items, labels, parameters))
        classes = [{"label": "calm", "score": 0.25}, {"label": "joy", "score": 0.75}]
        return [{"classifications": classes, "token_count": 2, "timing": TIMING} for _ in items]

    monkeypatch.setattr(backend, "extract", extract)
    answer = post(door, {"model": "org/m:x", "input": "one", "multi_label": True}, "/classify").json()
    assert asked == [("org/m:x", [{"text": "one"}], [], {"multi_label": True, "ranked": False})]
    assert answer["data"] == [{"index": 0, "label": "joy", "probs": [0.25, 0.75], "num_classes": 2}]
    assert (answer["usage"]["prompt_tokens"], answer["model"]) == (2, "org/m:x")


@pytest.mark.parametrize("family", ["token_classification", "gliner"])
def test_a_model_without_classes_of_its_own_does_not_classify(serving, family):
    door, backend, serve = serving
    serve(family=family, tasks=("extract",), dims={})
    refused = post(door, {"model": "org/m", "input": "one"}, "/classify")
    assert (refused.status_code, refused.json()["error"]["param"], backend.asked) == (400, "model", [])


@pytest.mark.parametrize(
    ("dims", "task", "output"),
    [
        ({"dense": 4, "multivector": 4}, None, "dense"),
        ({"multivector": 4}, None, "multivector"),
        ({"dense": 4, "multivector": 4}, "token_embed", "multivector"),
        ({"multivector": 4}, "embed", "dense"),
    ],
)
def test_a_task_of_pooling_is_an_output(serving, dims, task, output):
    door, backend, serve = serving
    serve(dims=dims)
    backend.outputs = ["dense", "multivector"]
    answer = post(door, POOLING | {"task": task, "dimensions": 4}, "/pooling").json()
    assert backend.asked[0][3] == {"output_types": output, "dimensions": 4}
    assert [{**each, "data": len(each["data"])} for each in answer["data"]] == [
        {"index": i, "object": "pooling", "data": 4} for i in range(2)
    ]


@pytest.mark.parametrize(
    ("failure", "kind", "param", "code"),
    [
        (invalid("input[3]", "must be a string"), "BadRequestError", "input", 400),
        (Failure("too_long", "text_2[1]: is longer …", field="text_2[1]"), "BadRequestError", "text_2", 400),
        (Failure("not_served", "model: x is not served", field="model"), "NotFoundError", "model", 404),
        (Failure("busy", "lanes: are full"), "Too Many Requests", None, 429),
        (Failure("timeout", "timeout: …"), "InternalServerError", None, 504),
        (Failure("model", "it broke"), "InternalServerError", None, 500),
    ],
)
def test_failures_have_its_shape(failure, kind, param, code):
    assert error(failure) == {"error": {"message": failure.message, "type": kind, "param": param, "code": code}}
