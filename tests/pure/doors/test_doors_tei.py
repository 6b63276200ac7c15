"""TEI's bodies → requests; results → its responses."""

import numpy as np
import pytest

from sie_triton.doors import tei
from sie_triton.doors.fields import BodyFields
from sie_triton.doors.tei import rerank_answer, sparse_answer
from sie_triton.errors import InputError


def read_embed_request(body):
    return tei.read_embed_request(BodyFields(body, max_items=100))


def read_rerank_request(body):
    return tei.read_rerank_request(BodyFields(body, max_items=100))


def test_requests_are_read_with_their_options():
    assert read_embed_request({"inputs": "one", "truncate": True}) == (["one"], {})
    full = {
        "inputs": ["a", "b"],
        "prompt_name": "query",
        "normalize": False,
        "dimensions": 8,
        "truncation_direction": "Right",
    }
    assert read_embed_request(full) == (["a", "b"], {"is_query": True, "normalize": False, "dimensions": 8})
    for role in ("document", "passage", "corpus"):
        assert read_embed_request({"inputs": "a", "prompt_name": role}).options == {"is_query": False}
    body = {"query": "q", "texts": ["a"], "raw_scores": False, "return_text": True}
    assert read_rerank_request(body) == ("q", ["a"], True, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": None}, "inputs: is missing"),
        ({"inputs": []}, "inputs: is empty"),
        ({"inputs": ["x"] * 101}, "inputs: has 101 entries; SIE_DOOR_MAX_ITEMS allows 100"),
        ({"inputs": [[101, 102]]}, r"inputs\[0\]: must be a string, not a list"),
        ({"truncate": False}, "truncate: must be true, because"),
        ({"truncation_direction": "Left"}, "truncation_direction: must be right"),
        ({"prompt_name": "web"}, "prompt_name: must be one of query, document, passage, corpus; got 'web'"),
    ],
)
def test_an_invalid_embed_field_is_named(change, message):
    with pytest.raises(InputError, match=f"^{message}"):
        read_embed_request({"inputs": "x", **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": []}, "texts: is empty"),
        ({"texts": None}, "texts: is missing; give a list of strings"),
        ({"texts": "a"}, "texts: must be a list of strings, not a string"),
        ({"query": None}, "query: is missing"),
        ({"raw_scores": True}, "raw_scores: is not supported"),
    ],
)
def test_an_invalid_rerank_field_is_named(change, message):
    with pytest.raises(InputError, match=f"^{message}"):
        read_rerank_request({"query": "q", "texts": ["a"], **change})


def test_ranks():
    wanted = read_rerank_request({"query": "q", "texts": ["a", "b"], "return_text": True})
    assert rerank_answer(wanted, [0.25, 0.5]) == [
        {"index": 1, "score": 0.5, "text": "b"},
        {"index": 0, "score": 0.25, "text": "a"},
    ]
    assert rerank_answer(read_rerank_request({"query": "q", "texts": ["a"]}), [0.5]) == [{"index": 0, "score": 0.5}]


def test_sparse_vectors():
    sparse = {"indices": np.array([3, 7], np.int32), "values": np.array([0.5, 1.5], np.float32)}
    none = {"indices": np.zeros(0, np.int32), "values": np.zeros(0, np.float32)}
    found = sparse_answer([{"sparse": sparse}, {"sparse": none}])
    assert found == [[{"index": 3, "value": 0.5}, {"index": 7, "value": 1.5}], []]
