"""OpenAI's bodies → requests; results → its responses."""

import pytest

from sie_triton.doors.openai import Embeddings
from sie_triton.errors import InputError


def asked(body):
    return Embeddings.read(body, max_items=100)


def test_a_request_is_read_with_its_options():
    plain = asked({"model": "org/name", "input": "one"})
    assert (plain.model, plain.input, plain.encoding_format, plain.options()) == ("org/name", ["one"], None, {})
    full = {"input": ["one", ""], "model": "org/name:fast", "encoding_format": "base64", "user": "u", "dimensions": 8}
    read = asked(full)
    assert (read.model, read.input, read.encoding_format) == ("org/name:fast", ["one", ""], "base64")
    assert read.options() == {"dimensions": 8}
    for task, is_query in (("retrieval.query", True), ("retrieval.passage", False)):
        assert asked({"model": "m", "input": "x", "task": task}).options() == {"is_query": is_query}


def test_null_fields_are_ignored_and_unknown_ones_passed_to_the_model():
    body = {"model": "m", "input": "x", "dimensions": None, "user": None, "is_query": True, "instruction": "find"}
    assert asked(body).options() == {"is_query": True, "instruction": "find"}


@pytest.mark.parametrize("ids", [[15339, 1917], [[15339, 1917], [42]], [0]])
def test_token_ids_are_refused_with_the_way_out(ids):
    with pytest.raises(InputError, match=r"^input: contains token ids.*check_embedding_ctx_length=False"):
        asked({"model": "m", "input": ids})


TEXT_PART, IMAGE_PART = (
    {"type": "text", "text": "roses"},
    {"type": "image_url", "image_url": {"url": "data:;base64,YQ=="}},
)


@pytest.mark.parametrize(
    ("content", "item"),
    [
        ("roses", {"text": "roses"}),
        ([TEXT_PART], {"text": "roses"}),
        ([IMAGE_PART, TEXT_PART], {"text": "roses", "image": b"a"}),
        ([{"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}], {"audio": b"a"}),
        ([{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,YQ=="}}], {"audio": b"a"}),
    ],
)
def test_the_parts_of_a_message_are_one_item(content, item):
    wanted = asked({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert (wanted.items(), wanted.given, wanted.options()) == ([item], "messages", {})


USER = {"role": "user", "content": [TEXT_PART]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": "x", "messages": [USER]}, "input"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}, USER]}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{**USER, "role": "system"}]}, "messages[0].role"),
        ({"messages": [{**USER, "name": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [TEXT_PART, TEXT_PART]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "audio", "text": "x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content"),
    ],
)
def test_what_is_no_message_of_one_item_is_refused_by_name(body, field):
    with pytest.raises(InputError) as caught:
        asked({"model": "m", **body}).items()
    assert caught.value.field == field
