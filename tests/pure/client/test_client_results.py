"""Responses to results: each item's values, and the names of errors."""

import numpy as np
import pytest
import tritonclient.grpc

from sie_triton.client.calls import EncodeCall, ScoreCall, pieces
from sie_triton.client.results import encode_results, score_entries
from sie_triton.contract.tensors import TIMING_FIELDS

ITEMS = ["a", {"text": "b", "id": "mine"}, {"text": "c", "id": ""}]


class Response(dict):
    """Response without the outputs that are `None`."""

    def __init__(self, **tensors) -> None:
        timing = np.arange(len(TIMING_FIELDS), dtype=np.float32)
        super().__init__({"token_count": np.array([3, 4, 5], np.int32), "timing_ms": timing, **tensors})

    as_numpy = dict.get

    def get_response(self):
        return {"outputs": [{"name": name} for name in self]}


def f32(*values):
    return np.array(values, np.float32)


# --- requests


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([9, 9], [(0, 1), (1, 2)]), ([9, 1, 7, 1], [(0, 1), (1, 3), (3, 4)]), ([1, 1, 1], [(0, 2), (2, 3)]), ([], [])],
)
def test_no_request_is_empty_however_large_an_item_is(sizes, expected):
    assert [(piece.start, piece.stop) for piece in pieces(sizes, max_items=2, max_bytes=8)] == expected


def test_a_request_says_what_its_items_are():
    call = EncodeCall(tritonclient.grpc, "org/model", ITEMS, {"options": {"dimensions": 3}})
    arguments = call.arguments(slice(1, 3))
    assert (arguments["model_name"], arguments["parameters"]) == ("org__model", {"dimensions": 3})
    (text,) = arguments["inputs"]
    assert (text.name(), text.datatype(), text.shape()) == ("text", "BYTES", [2])


# --- results


def test_each_item_gets_its_own_outputs():
    first, second, third = encode_results(
        Response(
            dense=f32([1, 2], [3, 4], [5, 6]),
            multivector=f32([1], [2], [3]),
            multivector_lengths=np.array([2, 0, 1], np.int32),
            sparse_indices=np.array([4, 7, 9], np.int32),
            sparse_values=f32(0.5, 0.25, 0.125),
            sparse_lengths=np.array([0, 2, 1], np.int32),
        ),
        ITEMS,
        None,
        "float32",
    )
    assert [each["dense"].tolist() for each in (first, second, third)] == [[1, 2], [3, 4], [5, 6]]
    assert [each["multivector"].tolist() for each in (first, second, third)] == [[[1], [2]], [], [[3]]]
    assert [each["sparse"]["indices"].tolist() for each in (first, second, third)] == [[], [4, 7], [9]]
    assert [each["sparse"]["values"].tolist() for each in (first, second, third)] == [[], [0.5, 0.25], [0.125]]
    assert [each["token_count"] for each in (first, second, third)] == [3, 4, 5]
    assert [each.get("id") for each in (first, second, third)] == [None, "mine", ""]
    assert "id" not in first
    assert first["timing"] == {f"{name}_ms": i for i, name in enumerate(TIMING_FIELDS)}


def test_truncated_items_are_marked_in_results():
    cut = Response(dense=f32([1], [2], [3]), truncated=np.array([False, True, False]))
    assert [each.get("truncated") for each in encode_results(cut, ITEMS, None, "float32")] == [None, True, None]
    scored = score_entries(Response(scores=f32(1, 2, 3), truncated=np.array([True, False, False])), ["a", "b", "c"])
    assert [each.get("truncated") for each in scored] == [True, None, None]


def test_only_what_was_asked_for_is_in_a_result():
    both = Response(dense=f32([1], [2], [3]), muvera=f32([4], [5], [6]))
    assert set(encode_results(both, ITEMS, ["muvera"], "float32")[0]) == {"muvera", "token_count", "timing"}
    assert set(encode_results(both, ITEMS, None, "float32")[0]) == {"dense", "muvera", "token_count", "timing"}


def test_quantised_outputs_keep_their_dtype_and_have_scales():
    rows = np.array([[255, 1], [2, 3], [4, 5]], np.uint8)
    plain = np.zeros((0, 0), np.float32)
    response = Response(dense=plain, dense_quantized=rows, dense_scales=f32([1, 2], [3, 4], [5, 6]))
    for dtype, expected in (("int8", [-1, 1]), ("uint8", [255, 1]), ("ubinary", [255, 1])):
        first, second, _ = encode_results(response, ITEMS, ["dense"], dtype)
        assert first["dense"].tolist() == expected
        assert second["dense_scales"].tolist() == [3, 4]
    without = Response(dense=plain, dense_quantized=rows, dense_scales=np.zeros((0, 2), np.float32))
    assert "dense_scales" not in encode_results(without, ITEMS, ["dense"], "int8")[0]


def test_items_are_ranked_under_the_names_that_they_were_given():
    call = ScoreCall(tritonclient.grpc, "org/model", {"text": "q", "id": "asked"}, ITEMS, {})
    result = call.results([Response(scores=f32(1, 3, 2))])
    assert [(each["item_id"], each["score"]) for each in result["scores"]] == [("mine", 3), ("", 2), ("item-0", 1)]
    assert (result["query_id"], result["model"], result["token_count"]) == ("asked", "org/model", 3 + 4 + 5)


# --- errors


def test_a_text_in_chunks_has_a_result_for_each():
    places = np.array([[0, 0, 9], [0, 7, 20], [1, 0, 2]], np.int32)
    long, short = encode_results(Response(dense=f32([1], [2], [3]), chunks=places), ITEMS[:2], None, "float32")
    assert [(each["start"], each["end"], each["dense"].tolist()) for each in long["chunks"]] == [
        (0, 9, [1]),
        (7, 20, [2]),
    ]
    assert [(each["start"], each["end"], each["dense"].tolist()) for each in short["chunks"]] == [(0, 2, [3])]
    assert (long["token_count"], short["token_count"], short["id"]) == (3 + 4, 5, "mine")
    none = np.zeros((0, 3), np.int32)
    assert "chunks" not in encode_results(Response(dense=f32([1], [2], [3]), chunks=none), ITEMS, None, "float32")[0]


def test_the_item_after_a_pdf_has_its_own_row():
    response = Response(
        dense=f32([1], [2], [3]), num_pages=np.array([2, 0], np.int32), page_numbers=np.array([1, 4], np.int32)
    )
    pdf, image = encode_results(response, [{"image": b"%PDF"}, {"image": b"", "id": "b"}], ["dense"], "float32")
    assert [(page["page"], page["dense"].tolist()) for page in pdf["pages"]] == [(1, [1]), (4, [2])]
    assert (pdf["token_count"], pdf["timing"]) == (3 + 4, image["timing"])
    assert (image["dense"].tolist(), image["token_count"], image["id"]) == ([3], 5, "b")
