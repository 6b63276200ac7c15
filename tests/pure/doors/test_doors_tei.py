"""TEI's bodies → requests; results → its responses."""

import numpy as np
import pytest

from sie_triton.doors import tei
from sie_triton.doors.json_dialects import cut_by
from sie_triton.doors.model_choice import (
    CLASSES,
    DENSE_VECTORS,
    MULTIVECTORS,
    SCORES,
    SPARSE_VECTORS,
    Capable,
    able,
)
from sie_triton.doors.tei import rerank_answer
from sie_triton.errors import InputError
from tests.support.doors import TIMING, door_of, post
from tests.support.stages import spec


def embed(body):
    return tei.Embed.read(body, max_items=100)


def rerank(body):
    return tei.Rerank.read(body, max_items=100)


def test_requests_are_read_with_their_options():
    plain = embed({"inputs": "one", "truncate": True})
    assert (plain.inputs, plain.truncate, plain.options()) == (["one"], True, {})
    assert embed({"inputs": "one", "truncate": False}).truncate is False
    full = {
        "inputs": ["a", "b"],
        "prompt_name": "query",
        "normalize": False,
        "dimensions": 8,
        "truncation_direction": "Right",
    }
    options = {"is_query": True, "normalize": False, "dimensions": 8, "truncation_side": "right"}
    assert (embed(full).inputs, embed(full).truncate, embed(full).options()) == (["a", "b"], None, options)
    assert embed({"inputs": "a", "prompt_name": "document"}).options() == {"is_query": False}
    for name in ("passage", "STS", ""):
        assert embed({"inputs": "a", "prompt_name": name}).options() == {"prompt_name": name}
    body = {"query": "q", "texts": ["a"], "raw_scores": False, "return_text": True, "top_n": 3.0, "truncate": False}
    read = rerank(body)
    assert (read.query, read.texts, read.truncate, read.return_text) == ("q", ["a"], False, True)
    assert (read.top_n, read.options()) == (3, {})


def test_a_side_that_the_model_cannot_cut_on_is_an_error():
    able, unable = (spec(family=family) for family in ("sentence_transformer", "static_embedding"))
    for side in ("left", "right"):
        assert cut_by(able, {"truncation_side": side}, "truncate") == {"truncation_side": side}
    assert cut_by(unable, {"truncation_side": "right", "lora": "a"}, "truncate") == {"lora": "a"}
    with pytest.raises(InputError) as error:
        cut_by(unable, {"truncation_side": "left"}, "truncate")
    assert error.value.field == "truncate"


def test_ranks():
    wanted = rerank({"query": "q", "texts": ["a", "b"], "return_text": True})
    assert rerank_answer(wanted, [0.25, 0.5]) == [
        {"index": 1, "score": 0.5, "text": "b"},
        {"index": 0, "score": 0.25, "text": "a"},
    ]
    assert rerank_answer(rerank({"query": "q", "texts": ["a"]}), [0.5]) == [{"index": 0, "score": 0.5}]
    first = rerank({"query": "q", "texts": ["a", "b", "c"], "top_n": 1})
    assert rerank_answer(first, [0.25, 0.5, 0.1]) == [{"index": 1, "score": 0.5}]


def test_a_classifier_is_told_from_other_models():
    families = ("sequence_classification", "token_classification", "nli_classification", "gliner")
    specs = [spec(family=family, tasks=("extract",), dims={}) for family in families]
    assert [each.family for each in able(specs, CLASSES)] == ["sequence_classification"]


SENTENCES = {"inputs": {"source_sentence": "q", "sentences": ["a", "b", "c"]}}
TEXTS = {
    "/embed": {"inputs": ["a", "b", "c"]},
    "/embed_all": {"inputs": ["a", "b", "c"]},
    "/rerank": {"query": "q", "texts": ["a", "b", "c"]},
    "/similarity": SENTENCES,
}


@pytest.fixture
def serving(monkeypatch):
    """A door whose model of TEI's routes is org/m, and its backend."""

    async def chosen(self, what):
        return spec(model="org/m")

    monkeypatch.setattr(Capable, "spec", chosen)
    return door_of()


@pytest.mark.parametrize(("path", "body"), TEXTS.items())
def test_only_a_truncated_text_is_refused_without_truncation(serving, path, body):
    door, backend = serving
    backend.outputs = ["dense", "multivector"]
    strictly = {"parameters": {"truncate": False}} if path == "/similarity" else {"truncate": False}
    assert post(door, body | strictly, path).status_code == 200
    backend.cut = {1}
    assert post(door, body, path).status_code == 200
    refused = post(door, body | strictly, path)
    field = {"/rerank": "texts", "/similarity": "inputs.sentences"}.get(path, "inputs")
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert refused.json()["error"].startswith(f"{field}[1]: is longer")


def test_a_body_of_cohere_at_teis_path_is_answered_in_coheres_dialect(serving):
    door, _ = serving
    body = {"model": "org/other", "query": "q", "documents": ["a", "b"], "top_n": 1, "return_documents": True}
    asked = post(door, body, "/rerank")
    results = [{"index": 1, "relevance_score": 1 / 16, "document": {"text": "b"}}]
    assert (asked.status_code, asked.json()["results"], asked.json()["model"]) == (200, results, "org/other")
    refused = post(door, body | {"documents": []}, "/rerank")
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("documents: is empty")


KINDS_OF_MODEL = {
    DENSE_VECTORS: ("/embed", {"inputs": "a"}),
    SPARSE_VECTORS: ("/embed_sparse", {"inputs": "a"}),
    MULTIVECTORS: ("/embed_all", {"inputs": "a"}),
    SCORES: ("/rerank", {"query": "q", "texts": ["a", "b"]}),
    CLASSES: ("/predict", {"inputs": "a"}),
}


@pytest.mark.parametrize("what", KINDS_OF_MODEL)
def test_the_path_without_a_name_is_the_route_of_what_the_model_returns(serving, monkeypatch, what):
    (path, body), (door, backend) = KINDS_OF_MODEL[what], serving
    sparse = {"indices": np.array([3]), "values": np.array([0.5])}
    encoded = {"dense": np.ones(2), "multivector": np.ones((3, 2)), "sparse": sparse}

    async def default(self):
        return what, spec(model="org/m")

    async def encode(*_):
        return [{**encoded, "token_count": 2, "timing": TIMING}]

    async def extract(*_):
        return [{"classifications": [{"label": "joy", "score": 1.0}], "token_count": 2, "timing": TIMING}]

    monkeypatch.setattr(Capable, "default", default)
    monkeypatch.setattr(backend, "encode", encode)
    monkeypatch.setattr(backend, "extract", extract)
    answer = post(door, body, "/")
    assert (answer.status_code, answer.json()) == (200, post(door, body, path).json())


def test_parameters_of_classes_are_refused_unless_empty():
    with pytest.raises(InputError, match=r"^parameters: "):
        tei.Predict.read({"inputs": "x", "parameters": {"top_k": 1}}, 100)


def test_a_classifier_gives_its_own_numbers_on_request():
    for given in (True, False):
        assert tei.Predict.read({"inputs": "x", "raw_scores": given}, 100).options() == {"raw_scores": given}
    assert tei.Predict.read({"inputs": "x"}, 100).options() == {}
    with pytest.raises(InputError, match=r"^raw_scores: must be true or false"):
        tei.Predict.read({"inputs": "x", "raw_scores": 1}, 100)


def test_similarities_are_cosines_with_the_source(serving, monkeypatch):
    door, backend = serving
    asked = []

    async def encode(model, items, seconds, parameters):
        asked.append((items, parameters))
        vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)
        return [{"dense": vector, "token_count": 1, "timing": TIMING} for vector in vectors]

    monkeypatch.setattr(backend, "encode", encode)
    given = {"prompt_name": "query", "truncation_direction": "right", "truncate": None}
    answer = post(door, SENTENCES | {"parameters": given, "dimensions": 2}, "/similarity")
    options = {"normalize": True, "is_query": True, "truncation_side": "right", "dimensions": 2}
    assert asked == [([{"text": text} for text in ("a", "b", "c", "q")], options | {"output_types": "dense"})]
    assert answer.json() == pytest.approx([0.8, 0.6, 0.96])
    assert answer.headers["X-Compute-Tokens"] == "4"


@pytest.mark.parametrize(
    ("inputs", "read"),
    [("", [""]), ("one", ["one"]), (["one"], ["one"]), ([["one"]], ["one"]), ([["a"], ["b"]], ["a", "b"])],
)
def test_texts_are_classified(serving, monkeypatch, inputs, read):
    door, backend = serving
    asked = []

    async def extract(model, items, labels, *_):
        asked.append((model, items, labels))
        classes = [{"label": "joy", "score": 0.75}, {"label": "calm", "score": 0.25}]
        return [{"classifications": classes, "token_count": 2, "timing": TIMING} for _ in items]

    monkeypatch.setattr(backend, "extract", extract)
    answer = post(door, {"inputs": inputs, "parameters": {}}, "/predict")
    assert asked == [("org/m", [{"text": text} for text in read], [])]
    classes = [{"score": 0.75, "label": "joy"}, {"score": 0.25, "label": "calm"}]
    assert answer.json() == ([classes] * len(read) if inputs and isinstance(inputs[0], list) else classes)
    assert answer.headers["X-Compute-Tokens"] == str(2 * len(read))
