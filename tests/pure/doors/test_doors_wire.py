"""Bodies of the door's requests and answers, beside msgpack_numpy, which clients have."""

import asyncio
import pickle

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from sie_triton.doors.body_codec import (
    JSON,
    MEMBERS_A_TURN,
    MSGPACK,
    read_json,
    read_msgpack,
    write_json,
    write_msgpack,
    written,
)
from sie_triton.doors.failures import Failure
from sie_triton.doors.items import item_in
from sie_triton.doors.response_bodies import encoded, extracted
from tests.support.doors import TIMING

ARRAYS = [
    np.array([1.5, -2], np.float32),
    np.ones((2, 3), np.float16),
    np.arange(4, dtype=np.int8).view(np.uint8),
    np.array([3, 1], np.int32),
    np.zeros((0, 4), np.float32),
    np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda each: f"{each.dtype}{each.shape}")
def test_arrays_are_written_and_read_as_msgpack_numpy_does_it(array):
    written = write_msgpack({"values": array})
    assert written == msgpack.packb({"values": array}, default=msgpack_numpy.encode)
    for found in (read_msgpack(written), msgpack.unpackb(written, object_hook=msgpack_numpy.decode)):
        assert found["values"].dtype == array.dtype
        assert np.array_equal(found["values"], array)
    assert read_json(write_json({"values": array})) == {"values": array.tolist()}


def test_every_float_survives_json():
    rng = np.random.default_rng(5)
    for dtype in (np.float32, np.float16):
        array = rng.normal(size=2000).astype(dtype)
        assert np.array_equal(np.array(read_json(write_json(array)), dtype), array)


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


BAD = {
    "pickle": msgpack.packb({b"nd": True, b"type": "O", b"kind": b"O", b"shape": [1], b"data": pickle.dumps(Evil())}),
    "objects": msgpack.packb({b"nd": True, b"type": "O", b"kind": b"", b"shape": [1], b"data": b"12345678"}),
    "structure": msgpack.packb({b"nd": True, b"type": [["a", "<f4"]], b"kind": b"V", b"shape": [1], b"data": b"1234"}),
    "complex": msgpack.packb({b"nd": True, b"type": "<c8", b"kind": b"", b"shape": [1], b"data": b"12345678"}),
    "short": msgpack.packb({b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": b"1234"}),
    "no data": msgpack.packb({b"nd": True, b"type": "<f4", b"shape": [2]}),
    "cut": msgpack.packb({"items": ["a"]})[:-1],
    "two": msgpack.packb(1) + msgpack.packb(2),
    "no UTF-8": b"\xa2\xff\xff",
    "deep": b"\x91" * 5000 + b"\x00",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_invalid_msgpack_is_refused_and_no_pickle_is_read(body):
    with pytest.raises(Failure, match=r"^body: ") as failure:
        read_msgpack(body)
    assert failure.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000, b'"\\ud800"', b"NaN"])
def test_invalid_json_is_refused(body):
    with pytest.raises(Failure, match=r"^body: is not valid JSON"):
        read_json(body)


@pytest.mark.parametrize("kind", ["image", "audio", "document"])
def test_no_string_is_ever_a_path(kind, tmp_path):
    (tmp_path / "abcd").write_bytes(b"secret")
    for given in (str(tmp_path / "abcd"), {"data": str(tmp_path / "abcd")}, "../x", "file:///etc/passwd"):
        with pytest.raises(Failure, match="is not valid base64"):
            item_in({kind: given}, "items[0]")
    assert item_in({kind: "abcd"}, "items[0]") == {kind: b"i\xb7\x1d"}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "must be a string or an object"),
        ({}, "must have text"),
        ({"id": "a", "metadata": {}}, "must have text"),
        ({"text": b"a"}, r"items\[0\].text: must be a string, not bytes"),
        ({"text": [], "image": b"1"}, r"items\[0\].text: must be a string"),
        ({"video": b"1"}, "video: is not supported"),
        ({"images": [b"1", b"2"]}, "list of one image"),
        ({"images": b"1"}, "list of one image"),
        ({"image": b"1", "images": [b"2"]}, "list of one image"),
        ({"image": {"data": 3}}, r"items\[0\].image: must be a file, not int"),
    ],
)
def test_an_invalid_item_is_refused_with_the_reason(item, message):
    with pytest.raises(Failure, match=message):
        item_in(item, "items[0]")


def test_metadata_and_absent_fields_of_an_item_are_dropped():
    given = {"text": "a", "id": 3, "metadata": {"k": 1}, "images": None, "video": None}
    assert item_in(given, "items[0]") == {"text": "a", "id": 3}


@pytest.mark.parametrize(
    ("given", "identity"),
    [
        ('"b"', "b"),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615", 2**64 - 1),
        ("3.0", 3),
        ("-9223372036854775809", None),
        ("18446744073709551616", None),
        ("1.5", None),
        ("[]", None),
    ],
)
def test_an_id_is_a_string_or_an_integer_of_64_bits(given, identity):
    """JSON's reader rounds larger integers: they would come back as others."""
    item = read_json(f'{{"text": "a", "id": {given}}}'.encode())
    if identity is not None:
        assert item_in(item, "items[0]") == {"text": "a", "id": identity}
        return
    with pytest.raises(Failure, match=r"items\[0\].id: must be a string"):
        item_in(item, "items[0]")


@pytest.mark.parametrize("number", [0, 1, MEMBERS_A_TURN, MEMBERS_A_TURN + 1, 3 * MEMBERS_A_TURN])
def test_an_answer_in_parts_is_the_same(number):
    members = [{"id": f"a{i}", "dense": ARRAYS[0], "scores": {"a": [1, 2], "b": []}} for i in range(number)]
    for value in ({"items": members, "timing": {"total_ms": 1.5}, "model": "ü"}, members, {"a": {"b": members}}, 5, {}):
        assert asyncio.run(written(value, JSON)) == write_json(value)
        assert asyncio.run(written(value, MSGPACK)) == write_msgpack(value)


def test_truncated_items_are_marked_in_responses():
    vectors = {"dense": np.ones(2, np.float32), "token_count": 2, "timing": TIMING}
    found = {"entities": [], "token_count": 2, "timing": TIMING}
    cut = {"truncated": True}
    for answer in (
        encoded("org/m", [vectors, vectors | cut], "float32", {}, {}),
        extracted("org/m", [found, found | cut]),
    ):
        assert [item.get("truncated") for item in answer["items"]] == [None, True]


def test_chunks_stand_in_place_of_the_outputs_of_an_item():
    vectors = {"muvera": np.ones(9, np.uint8), "token_count": 2, "timing": TIMING}
    item = {"chunks": [vectors | {"start": 0, "end": 5}, vectors | {"start": 4, "end": 9}], "token_count": 4}
    answer = encoded("org/m", [item | {"id": "a", "timing": TIMING}], "ubinary", {"muvera": 70}, {"muvera": "dense"})
    (split,) = answer["items"]
    assert (set(split), split["id"], answer["usage"]) == ({"id", "chunks"}, "a", {"input_tokens": 4})
    assert [(each["start"], each["end"]) for each in split["chunks"]] == [(0, 5), (4, 9)]
    assert [(each["dense"]["dims"], set(each)) for each in split["chunks"]] == [(70, {"dense", "start", "end"})] * 2


def test_others_have_a_turn_while_a_large_answer_is_written():
    async def run():
        answer = asyncio.create_task(written([ARRAYS[0]] * 10 * MEMBERS_A_TURN, JSON))
        turns = 0
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(run()) >= 10
