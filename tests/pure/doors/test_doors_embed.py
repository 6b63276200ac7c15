"""Cohere's bodies for vectors → requests; vectors → its responses."""

import asyncio
import base64

import numpy as np
import pytest

from sie_triton.doors.embed import Embed, answer
from sie_triton.doors.failures import Failure
from sie_triton.errors import BusyError, InputError
from tests.support.doors import door_of, knock

BODY = {"model": "org/name", "texts": ["a", "b"]}
PIXEL = "data:image/png;base64," + base64.b64encode(b"pixel").decode()


def asked(body):
    return Embed.read(body, max_items=100)


def read(body):
    """Read all of a body, as the route does."""
    wanted = asked(body)
    return wanted.content, wanted.options()


def test_a_request_is_read_with_its_options():
    plain = asked(BODY)
    assert (plain.model, plain.content) == ("org/name", ("texts", [{"text": "a"}, {"text": "b"}]))
    assert (plain.types, plain.truncate, plain.options()) == (["float"], None, {})
    full = asked(
        BODY
        | {"input_type": "search_query", "embedding_types": ["int8", "float", "int8"], "output_dimension": 8}
        | {"truncate": "NONE", "priority": 1, "lora": "legal"}
    )
    assert (full.types, full.truncate) == (["int8", "float"], "NONE")
    assert full.options() == {"is_query": True, "dimensions": 8, "lora": "legal"}
    for change, parameters in (
        ({"input_type": "search_document"}, {"is_query": False}),
        ({"input_type": "clustering"}, {}),
        ({"output_dimension": 8.0, "dimensions": 8}, {"dimensions": 8}),
        ({"truncate": "START"}, {"truncation_side": "left"}),
        ({"truncate": "END"}, {"truncation_side": "right"}),
    ):
        assert asked(BODY | change).options() == parameters


def test_images_and_texts_with_images_are_read():
    images = asked({"model": "m", "images": [PIXEL], "input_type": "image"})
    assert images.content == ("images", [{"image": b"pixel"}])
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    both = asked({"model": "m", "inputs": [{"content": content}, {"content": content[:1]}]})
    assert both.content == ("inputs", [{"text": "a", "image": b"pixel"}, {"text": "a"}])


@pytest.mark.parametrize(
    "content",
    [
        None,
        "a",
        ["a"],
        [{"type": "audio", "text": "a"}],
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [{"type": "image_url", "image_url": {}}],
    ],
)
def test_content_that_is_no_text_and_image_is_refused(content):
    with pytest.raises(InputError, match=r"^inputs\[1\].content: must be a list of at most one"):
        read({"model": "m", "inputs": [{"content": [{"type": "text", "text": "a"}]}, {"content": content}]})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"content": [{"type": "text", "text": "a"}], "lora": "b"}, r"inputs\[0\].lora"),
        ({"content": [{"type": "text", "text": "a", "lora": "b"}]}, r"inputs\[0\].content.lora"),
    ],
)
def test_a_field_that_is_not_read_is_named(given, field):
    with pytest.raises(InputError, match=f"^{field}: is not read here"):
        read({"model": "m", "inputs": [given]})


@pytest.mark.parametrize(
    ("images", "field"), [(["data:image/png;base64,"], r"images\[0\]"), (None, r"inputs\[0\].image")]
)
def test_an_image_without_bytes_is_refused(images, field):
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    given = {"images": images} if images else {"inputs": [{"content": content}]}
    with pytest.raises(Failure, match=rf"^{field}: is empty"):
        read({"model": "m"} | given)


@pytest.mark.parametrize("image", ["http://host/a.png", "data:image/png;base64,a"])
def test_an_image_that_is_no_base64_is_refused_by_its_field(image):
    with pytest.raises(Failure, match=r"^images\[1\]: is not valid base64.* data: URL"):
        read({"model": "m", "images": [PIXEL, image]})


def test_an_item_without_content_is_refused():
    with pytest.raises(Failure, match=r"inputs\[0\]: must have text"):
        read({"model": "m", "inputs": [{"content": []}]})


def test_vectors_are_returned_by_their_type():
    exact = np.array([0.5, -1.0], np.float32)
    results = {"float32": [{"dense": exact, "token_count": 3}, {"dense": -exact, "token_count": 4}]}
    body = answer("2", asked(BODY | {"embedding_types": ["float", "base64"]}), results)
    assert (list(body["embeddings"]), body["response_type"]) == (["float", "base64"], "embeddings_by_type")
    assert np.frombuffer(base64.b64decode(body["embeddings"]["base64"][0]), "<f4").tolist() == [0.5, -1.0]
    assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}}


def test_the_first_version_returns_vectors_without_their_type_by_default():
    results = {"float32": [{"dense": np.ones(2, np.float32), "token_count": 1}] * 2}
    body = answer("1", asked(BODY), results)
    assert (len(body["embeddings"]), body["response_type"]) == (2, "embeddings_floats")
    assert list(answer("1", asked(BODY | {"embedding_types": ["float"]}), results)["embeddings"]) == ["float"]


def test_an_error_for_one_type_ends_the_work_for_the_others():
    door, backend = door_of()
    ended = []

    async def encode(model, items, seconds, parameters):
        if parameters["output_dtype"] == "int8":
            raise BusyError("all places are taken")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(parameters["output_dtype"])

    async def act(client):
        response = await client.post("/v2/embed", json=BODY | {"embedding_types": ["float", "int8", "uint8"]})
        for _ in range(10):  # for what was cancelled
            await asyncio.sleep(0)
        return response, list(ended)

    backend.encode = encode
    response, ended_first = knock(door, act)
    assert (response.status_code, sorted(ended_first)) == (429, ["float32", "uint8"])
