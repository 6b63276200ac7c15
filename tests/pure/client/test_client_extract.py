"""Requests of `extract`, and the results of its responses."""

import json

import numpy as np
import pytest
import tritonclient.grpc
from pydantic import BaseModel

from sie_triton.client.arguments import request_parameters
from sie_triton.client.calls import EncodeCall, ExtractCall
from sie_triton.client.types import ExtractOptions
from sie_triton.contract.tensors import TIMING_FIELDS
from sie_triton.errors import InputError
from tests.pure.client.test_client_results import Response

NONE = {"entities": [], "relations": [], "classifications": [], "objects": [], "data": {}}
SPAN = {"start": 0, "end": 1, "label": "größe"}


def call(items, labels=(), entities=None, **options):
    return ExtractCall(tritonclient.grpc, "org/model", items, labels, entities, options)


def sent(made, piece):
    """Inputs by name: (shape, datatype, content)."""
    inputs = made.arguments(piece)["inputs"]
    return {each.name(): (each.shape(), each.datatype(), each._get_content()) for each in inputs}


def on_the_wire(*values):
    """Serialize a tensor of bytes: each with its length before it."""
    encoded = [value.encode() for value in values]
    return ([len(encoded)], "BYTES", b"".join(len(each).to_bytes(4, "little") + each for each in encoded))


def test_each_request_has_all_labels_and_the_entities_of_its_items():
    made = call(["a", {"text": "b"}, "c"], ["x", "größe"], [[], [SPAN], [SPAN, SPAN]])
    assert sent(made, slice(1, 3)) == {
        "text": on_the_wire("b", "c"),
        "labels": on_the_wire("x", "größe"),
        "entities": on_the_wire(*(json.dumps(each, ensure_ascii=False) for each in ([SPAN], [SPAN, SPAN]))),
    }


def test_inputs_that_are_not_given_are_not_sent():
    for labels in ((), [], None, iter(())):
        assert set(sent(call("a", labels), slice(0, 1))) == {"text"}
    assert sent(call("a", iter(["x"]), []), slice(0, 1)) == {
        "text": on_the_wire("a"),
        "labels": on_the_wire("x"),
        "entities": on_the_wire("[]"),
    }


def test_labels_count_beside_each_item():
    assert [piece.stop for piece in call(["a" * 30_000] * 5).pieces] == [2, 4, 5]
    assert [piece.stop for piece in call(["a"] * 5, ["x" * 20_000, "y" * 10_000]).pieces] == [2, 4, 5]


class Person(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"threshold": 0.5, "flat_ner": False}, {"threshold": 0.5, "flat_ner": False}),
        ({"threshold": {"größe": 0.5}}, {"label_thresholds": '{"größe": 0.5}'}),
        ({"threshold": {"a": 1}, "options": {"threshold": 0.3}}, {"label_thresholds": '{"a": 1}', "threshold": 0.3}),
        ({"threshold": 0.5, "options": {"threshold": 0.3, "more": 1}}, {"threshold": 0.5, "more": 1}),
        ({"threshold": None, "instruction": "find"}, {"instruction": "find"}),
        ({"label_descriptions": {"a": "b"}}, {"label_descriptions": '{"a": "b"}'}),
        ({"options": {"label_descriptions": {"a": "b"}}}, {"label_descriptions": '{"a": "b"}'}),
        ({"output_schema": '{"a": 1}'}, {"output_schema": '{"a": 1}'}),
        ({"output_schema": {"a": 1}}, {"output_schema": '{"a": 1}'}),
        ({"output_schema": Person}, {"output_schema": json.dumps(Person.model_json_schema())}),
        ({"output_schema": Person(name="")}, {"output_schema": json.dumps(Person.model_json_schema())}),
    ],
)
def test_parameters(options, parameters):
    assert call("a", **options).arguments(slice(0, 1))["parameters"] == parameters


def response_of(*found):
    extraction = np.array([json.dumps(each).encode() for each in found], np.object_)
    return Response(extraction=extraction, token_count=np.arange(len(found)) + 3)


def test_each_item_gets_its_own_findings():
    found = [{**NONE, "entities": [{"text": text}]} for text in "abc"]
    made = call(["a", {"text": "b", "id": "mine"}, {"text": "c", "id": 0}])
    made.pieces = [slice(0, 2), slice(2, 3)]
    first, second, third = made.results([response_of(*found[:2]), response_of(found[2])])
    timing = {f"{name}_ms": i for i, name in enumerate(TIMING_FIELDS)}
    assert first == {**found[0], "token_count": 3, "timing": timing}
    assert second == {**found[1], "token_count": 4, "timing": timing, "id": "mine"}
    assert third == {**found[2], "token_count": 3, "timing": timing, "id": 0}


def test_one_item_one_result():
    (alone,) = call(["a"]).results([response_of(NONE)])
    assert call("a").results([response_of(NONE)]) == alone
    assert call({"text": "a", "id": "x"}).results([response_of(NONE)]) == {**alone, "id": "x"}


def test_a_model_that_only_extracts_refuses_encode():
    with pytest.raises(InputError, match=r"^model: does not encode; call extract$"):
        EncodeCall(tritonclient.grpc, "org/model", "a", {}).results([response_of(NONE)])


def test_lists_of_relations_and_examples_are_sent_as_json():
    examples = [{"text": "x", "labels": ["a"]}]
    options = {"relation_labels": ["lives in"], "examples": examples, "label_groups": {"g": ["a"]}}
    sent = request_parameters("extract", {"options": options}, ExtractOptions)
    assert {name: json.loads(value) for name, value in sent.items()} == options
