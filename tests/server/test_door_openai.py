"""The `openai` package at the door, before a real server."""

import base64

import numpy as np
import openai
import pytest

from tests.conftest import BGE_M3, CLAP, CLIP, MINILM, SPLADE
from tests.support.pictures import pictures
from tests.support.sounds import sounds

TEXTS = ["hello", "", "Vines climb on what they find; roses do too, and 蔷薇.", "hello again " * 200]


@pytest.fixture(scope="module")
def client(door):
    with openai.OpenAI(base_url=f"{door}/v1", api_key="none", max_retries=0) as client:
        yield client


def vectors(answer):
    return np.array([each.embedding for each in answer.data], np.float32)


@pytest.mark.parametrize("how", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_vectors_are_those_of_the_client_bit_for_bit(client, ours, how):
    expected = ours.encode(MINILM, TEXTS)
    found = client.embeddings.create(model=MINILM, input=TEXTS, **how)
    assert np.array_equal(vectors(found), [each["dense"] for each in expected])
    assert [each.index for each in found.data] == [0, 1, 2, 3]
    num_tokens = sum(each["token_count"] for each in expected)
    assert (found.usage.prompt_tokens, found.usage.total_tokens, found.model) == (num_tokens, num_tokens, MINILM)
    assert np.array_equal(
        vectors(client.embeddings.create(model=MINILM, input="hello", **how))[0], expected[0]["dense"]
    )


def test_dimensions_are_honoured(client, ours):
    found = client.embeddings.create(model=MINILM, input="hello", dimensions=64)
    assert np.array_equal(vectors(found)[0], ours.encode(MINILM, "hello", options={"dimensions": 64})["dense"])


def test_profiles_and_extra_parameters_are_honoured(client, ours):
    by_name = client.embeddings.create(model=f"{BGE_M3}:asking", input="roses", extra_body={"is_query": True})
    by_body = client.embeddings.create(model=BGE_M3, input="roses", extra_body={"is_query": True, "profile": "asking"})
    expected = ours.encode(BGE_M3, "roses", is_query=True, profile="asking", output_types=["dense"])["dense"]
    assert np.array_equal(vectors(by_name)[0], expected)
    assert np.array_equal(vectors(by_body)[0], expected)
    assert not np.array_equal(vectors(client.embeddings.create(model=BGE_M3, input="roses"))[0], expected)


def test_a_message_has_the_vector_of_its_item_and_both_parts_need_a_model_that_reads_both(client, ours):
    image, text = pictures()[0], {"type": "text", "text": "roses"}
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    picture = {"type": "image_url", "image_url": {"url": url}}

    def vector(*parts, model=CLIP):
        body = {"model": model, "messages": [{"role": "user", "content": parts}]}
        return client.post("/embeddings", body=body, cast_to=object)["data"][0]["embedding"]

    for part, item in ((text, "roses"), (picture, {"image": image})):
        np.testing.assert_allclose(vector(part), ours.encode(CLIP, item)["dense"], atol=1e-5)
    sound = sounds()[0]
    heard = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}}
    expected = ours.encode(CLAP, {"audio": sound})["dense"]
    np.testing.assert_allclose(vector(heard, model=CLAP), expected, atol=1e-5)
    with pytest.raises(openai.BadRequestError):
        vector(text, picture)


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"dimensions": 385}, "dimensions", "385 is not allowed; give an integer from 1 to 384"),
        ({"model": SPLADE}, "model", f"{SPLADE} does not return dense vectors"),
    ],
)
def test_an_invalid_field_is_named_in_the_error(client, given, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.embeddings.create(**{"model": MINILM, "input": "x", **given})
    assert (caught.value.param, caught.value.type, caught.value.code) == (
        param,
        "invalid_request_error",
        "invalid_input",
    )


def test_a_model_that_is_not_served(client):
    with pytest.raises(openai.NotFoundError, match=f"{MINILM} has no profile none; its profiles are default"):
        client.embeddings.create(model=f"{MINILM}:none", input="x")
    with pytest.raises(openai.NotFoundError, match=f"no/such is not served; served models: .*{MINILM}") as caught:
        client.embeddings.create(model="no/such", input="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_models_are_listed_in_openai_and_native_form(client, http):
    found = {model.id: model for model in client.models.list()}
    assert (found[MINILM].object, found[MINILM].owned_by) == ("model", "sentence-transformers")
    assert [*found] == [model["name"] for model in http.get("/v1/models").json()["models"]]
    one = client.models.retrieve(MINILM)
    assert (one.id, one.object) == (MINILM, "model")
    assert one.dims == {"dense": 384}
    with pytest.raises(openai.NotFoundError, match="no/such is not served") as caught:
        client.models.retrieve("no/such")
    assert caught.value.code == "model_not_found"
    assert http.get("/v1/models/no/such").json()["detail"]["code"] == "MODEL_NOT_FOUND"
