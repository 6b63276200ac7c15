"""vLLM's routes for pooling models, by the `openai` package as vLLM's users call it, before a real server."""

import base64

import numpy as np
import openai
import pytest
import transformers

from tests.conftest import CLASSES, CLASSIFIER, COLBERT, CROSS_ENCODER, MINILM
from tests.support.classifiers import TEXTS as CLASSIFIED

QUERY, TEXTS = "what climbs on vines?", ["Roses climb.", "A ship sails.", "Vines are what grapes climb on.", ""]


@pytest.fixture(scope="module")
def post(door):
    with openai.OpenAI(base_url=door, api_key="none", max_retries=0) as client:
        yield lambda path, **body: client.post(path, cast_to=object, body=body)


def scores(found):
    return {each["item_id"]: each["score"] for each in found["scores"]}


@pytest.mark.parametrize("model", [CROSS_ENCODER, COLBERT])
def test_scores_of_pairs_are_those_of_the_client(post, ours, model):
    expected = [*scores(ours.score(model, QUERY, TEXTS)).items()]
    found = post("/score", model=model, text_1=QUERY, text_2=TEXTS)
    assert [(f"item-{each['index']}", each["score"]) for each in found["data"]] == sorted(expected)
    pairs = post("/v1/score", model=model, queries=[QUERY, TEXTS[0]], documents=TEXTS[:2])
    assert pairs["data"][0]["score"] == pytest.approx(dict(expected)["item-0"], rel=1e-5)
    (other,) = scores(ours.score(model, TEXTS[0], TEXTS[1])).values()
    assert pairs["data"][1]["score"] == pytest.approx(other, rel=1e-5)


def test_a_model_that_encodes_scores_by_cosines(post, ours):
    query, *vectors = (each["dense"] for each in ours.encode(MINILM, [QUERY, *TEXTS]))
    found = post("/score", model=MINILM, text_1=QUERY, text_2=TEXTS)
    np.testing.assert_allclose([each["score"] for each in found["data"]], np.stack(vectors) @ query, atol=1e-6)


def test_pooling_answers_the_vectors_of_the_client(post, ours):
    expected = [each["dense"] for each in ours.encode(MINILM, TEXTS)]
    found = post("/pooling", model=MINILM, input=TEXTS)
    assert np.array_equal([np.array(each["data"], np.float32) for each in found["data"]], expected)
    coded = post("/pooling", model=MINILM, input=TEXTS, encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(each["data"]), "<f4") for each in coded["data"]]
    assert np.array_equal(decoded, expected)
    (rows,) = (each["data"] for each in post("/pooling", model=COLBERT, input=QUERY)["data"])
    assert np.array_equal(np.array(rows, np.float32), ours.encode(COLBERT, QUERY)["multivector"])


def test_classes_are_those_of_the_library(post, server):
    directory = server.settings.models_dir.parent / "classifier"
    library = transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)
    answer = post("/classify", model=CLASSIFIER, input=CLASSIFIED)
    for each, theirs in zip(answer["data"], library(CLASSIFIED), strict=True):
        by_label = {found["label"]: found["score"] for found in theirs}
        assert each["probs"] == pytest.approx([by_label[label] for label in CLASSES], abs=1e-4)
        assert (each["label"], each["num_classes"]) == (theirs[0]["label"], len(CLASSES))
