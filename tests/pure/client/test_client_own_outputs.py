"""The client with models of own outputs or inputs, whose names it learns from responses."""

from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc

from sie_triton.client.calls import EncodeCall, ScoreCall, ensemble_of, model_names
from sie_triton.client.results import encode_results, own_outputs
from sie_triton.contract import ENCODE_OUTPUTS, TASKS, VERBS
from sie_triton.errors import InputError
from tests.pure.client.test_client_results import ITEMS, Response, f32

TAGS = {"tags": f32([1], [2], [3], [4]), "tags_lengths": np.array([1, 0, 3], np.int32)}
LABEL = f32([7, 8], [9, 10], [11, 12])


def shown(values):
    return [each.tolist() for each in values]


def test_own_outputs_are_split_by_their_lengths_or_by_row():
    results = encode_results(Response(**TAGS, label=LABEL, dense=f32([1], [2], [3])), ITEMS, None, "float32")
    assert shown(each["tags"] for each in results) == [[[1]], [], [[2], [3], [4]]]
    assert shown(each["label"] for each in results) == LABEL.tolist()
    assert shown(each["dense"] for each in results) == [[1], [2], [3]]
    assert set(results[0]) == {"tags", "label", "dense", "token_count", "timing"}


def test_an_own_output_may_be_asked_for_by_name():
    response = Response(**TAGS, label=LABEL, dense=f32([1], [2], [3]))
    assert set(encode_results(response, ITEMS, ["tags"], "float32")[0]) == {"tags", "token_count", "timing"}
    assert set(encode_results(response, ITEMS, ["nothing"], "float32")[0]) == {"token_count", "timing"}


@pytest.mark.parametrize("as_json", [True, False])
def test_outputs_outside_the_contract_are_own_outputs(as_json):
    """Without the lengths of one of them; a name that only ends like those is an output."""
    of_contract = [
        tensor.name
        for output in ENCODE_OUTPUTS.values()
        for tensor in (*output.tensors, output.quantized, output.scales)
        if tensor
    ]
    names = [*of_contract, "token_count", "timing_ms", "tags_lengths", "tags", "arm_lengths", "label"]
    outputs = [{"name": name} if as_json else SimpleNamespace(name=name) for name in names]
    response = SimpleNamespace(
        get_response=lambda: {"outputs": outputs} if as_json else SimpleNamespace(outputs=outputs)
    )
    assert own_outputs(response) == ["tags", "arm_lengths", "label"]


# --- which ensemble

ENCODE, SCORE = VERBS["encode"], VERBS["score"]


def metadata(*names, as_json=True):
    inputs = [{"name": name} if as_json else SimpleNamespace(name=name) for name in names]
    return {"inputs": inputs} if as_json else SimpleNamespace(inputs=inputs)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("verb", "inputs", "does"),
    [
        (ENCODE, ["text"], True),
        (ENCODE, ["text", "image"], True),
        (ENCODE, ["query", "text"], False),
        (ENCODE, ["text", "labels"], False),
        (SCORE, ["query", "text"], True),
        (SCORE, ["query", "image"], True),
        (SCORE, ["text"], False),
        (SCORE, ["query", "text", "labels"], False),
    ],
)
def test_a_verb_requires_a_model_with_matching_inputs(verb, inputs, does, as_json):
    given = metadata(*inputs, as_json=as_json)
    assert ensemble_of("org/m", verb, given, has_own=True) == f"org__m-{verb.name}"
    if does:
        assert ensemble_of("org/m", verb, given, has_own=False) == "org__m"
    else:
        with pytest.raises(InputError, match=f"org/m does not {verb.name}; it takes {', '.join(inputs)}"):
            ensemble_of("org/m", verb, given, has_own=False)


@pytest.mark.parametrize("as_json", [True, False])
def test_models_are_listed_by_the_names_that_clients_call_them(as_json):
    names = [
        "org__m",
        *(f"org__m-{part}" for part in (*TASKS, "preprocess", "inference", "postprocess")),
        "a-score",
        "o__m__y",
    ]
    models = [{"name": name} if as_json else SimpleNamespace(name=name) for name in names]
    statistics = {"model_stats": models} if as_json else SimpleNamespace(model_stats=models)
    assert model_names(statistics) == ["a-score", "o/m__y", "org/m"]


# --- several requests


def test_results_of_several_requests_are_in_the_order_of_the_items():
    call = EncodeCall(tritonclient.grpc, "m", ["x" * 40_000, "y" * 40_000], {})
    responses = []
    for i, _ in enumerate(call.pieces):
        response = Response(dense=f32([i]))
        response["token_count"] = np.array([i], np.int32)
        responses.append(response)
    assert [(each["dense"].tolist(), each["token_count"]) for each in call.results(responses)] == [([0], 0), ([1], 1)]


def test_equal_scores_keep_item_order_and_timing_is_the_slowest_requests():
    call = ScoreCall(tritonclient.grpc, "m", "q", ["x" * 40_000, "y" * 40_000, "z"], {})
    assert [(piece.start, piece.stop) for piece in call.pieces] == [(0, 1), (1, 3)]
    quick, slow = Response(scores=f32(2)), Response(scores=f32(5, 2))
    slow["timing_ms"] = slow["timing_ms"] + 10
    found = call.results([quick, slow])
    ranked = [(each["item_id"], each["rank"]) for each in found["scores"]]
    assert ranked == [("item-1", 0), ("item-0", 1), ("item-2", 2)]
    assert found["timing"]["total_ms"] == 15
