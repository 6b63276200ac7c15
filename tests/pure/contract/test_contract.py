"""The contract: parameters, tensors, and the description of results."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sie_triton import contract
from sie_triton.contract import VERBS, Entity, Extraction, Findings, Line, Object, tensors
from sie_triton.contract.extract import read_labels
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError
from sie_triton.models.families import model_of
from tests.pure.pipeline.render.test_render import SPEC
from tests.support.stages import spec

SIDE = contract.TRUNCATION_SIDE.name
LATE = contract.LATE_CHUNKING.name


def model_parameters(of, verb="encode"):
    return VERBS[verb].all_parameters(model_of(of))


ALLOWED = model_parameters(SPEC)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dimensions": 384},
        {"is_query": False, "normalize": True},
        {"output_types": "dense", "output_dtype": "float32", "profile": "default"},
        {"instruction": "{0} is no template %s"},
    ],
)
def test_legal_parameters_pass_unchanged(given):
    assert contract.check_parameters(given, ALLOWED) == given


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"dimension": 3}, "allowed are chunk_overlap, chunk_tokens, dimensions, instruction"),
        ({"dimensions": "3"}, "an integer from 1 to 384"),
        ({"dimensions": True}, "an integer from 1 to 384"),
        ({"dimensions": 0}, "an integer from 1 to 384"),
        ({"dimensions": 385}, "an integer from 1 to 384"),
        ({"is_query": 1}, "a boolean"),
        ({"output_types": "dense,sparse"}, "a comma-separated list of dense"),
        ({"output_dtype": "int4"}, "one of float32, float16"),
        ({"profile": "other"}, "one of default"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(given, allowed):
    with pytest.raises(InputError, match=allowed) as caught:
        contract.check_parameters(given, ALLOWED)
    assert next(iter(given)) in str(caught.value)


OF_ENCODE = {"output_types", "output_dtype", "is_query", "prompt_name", "chunk_tokens", "chunk_overlap", SIDE, LATE}


@pytest.mark.parametrize(
    ("changes", "task", "expected"),
    [
        ({}, "encode", OF_ENCODE | {"dimensions", "normalize"}),
        ({"dims": {"sparse": 500}}, "encode", OF_ENCODE),
        ({"tasks": ("score",), "dims": {}}, "score", {SIDE, LATE}),
        ({"tasks": ("score",), "score_modes": ("maxsim",)}, "score", {SIDE, LATE}),
        ({"tasks": ("score",), "score_modes": ("dense", "sparse")}, "score", {"score_mode", SIDE, LATE}),
    ],
)
def test_a_model_takes_the_parameters_that_it_has_a_use_for(changes, task, expected):
    assert set(model_parameters(spec(**changes), task)) == expected | {"instruction", "lora", "profile"}


@pytest.mark.parametrize(
    ("output_types", "dtypes"),
    [
        (("dense",), contract.OUTPUT_DTYPES),
        (("sparse", "muvera"), contract.OUTPUT_DTYPES),
        (("sparse",), ("float32",)),
    ],
)
def test_only_vector_outputs_offer_quantised_dtypes(output_types, dtypes):
    assert model_parameters(spec(dims=dict.fromkeys(output_types, 8)))["output_dtype"].choices == dtypes


def test_floats_may_be_given_as_integers():
    assert Parameter("threshold", float).check(1) == 1.0


@pytest.mark.parametrize("verb", ["encode", "score"])
def test_inputs_are_read_by_their_names(verb):
    model = model_of(spec(inputs=("document",), tasks=(verb,)))
    sent = {tensors.DOCUMENT.name: ["a", "b"], tensors.QUERY.name: ["q"]}
    parts = VERBS[verb].read(sent, {}, Profile(), model)
    assert (parts[0].name, parts[0].elements) == ("document", ["a", "b"])


def test_the_number_of_findings_per_item_is_bounded():
    found = Findings([Entity(0, 1, 0, 0.5)] * 99_998, objects=[Object((0, 0, 1, 1), 0, 0.5)] * 2)
    model = replace(model_of(spec()), extraction=Extraction((), lambda rows, options: found))
    collect = partial(VERBS["extract"].collect, model, {}, [{}, {}], np.ones(2, np.int32))
    assert len(collect()["found_lengths"]) == 2
    found.lines.append(Line("word", None, "read", 1.0))
    with pytest.raises(InputError, match=r"^parameter threshold: item 0 has 100001 findings, and at most 100000"):
        collect()


def test_findings_survive_json():
    found = Findings(
        [Entity(0, 3, 1, 0.5)],
        data={"a": [1]},
        objects=[Object((1.5, 2, 3, 4), 0, 0.25)],
        lines=[Line("word", (0, 0, 9, 9), "read", 1.0), Line("more", None, "read", 0.5)],
    )
    told = Findings.from_json(found.to_json()).to_response("Ada", ["cat", "person"])
    assert told["entities"] == [
        {"text": "Ada", "label": "person", "score": 0.5, "start": 0, "end": 3},
        {"text": "word", "label": "read", "score": 1.0, "bbox": [0, 0, 9, 9]},
        {"text": "more", "label": "read", "score": 0.5, "bbox": None},
    ]
    assert told["objects"] == [{"label": "cat", "score": 0.25, "bbox": [1.5, 2, 3, 4]}]
    assert told["data"] == {"a": [1]}


def test_tokens_of_an_item_are_those_of_its_pieces():
    pieces = {"num_pieces": np.array([2, 1, 3], np.int32)}
    counts = VERBS["extract"].token_count(np.array([5, 1, 7, 2, 2, 9], np.int32), 3, pieces)
    assert counts.tolist() == [6, 7, 13]


def test_labels_are_read_once_each_in_the_order_in_which_they_came():
    labels = read_labels(["b", "a", "b"], {}, replace(model_of(spec()), extraction=Extraction(labels="required")))
    assert [label.name for label in labels] == ["b", "a"]
