"""Requests joined into one, and its response split into theirs: each gets what it would have got alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar import joining
from sie_triton.cluster.sidecar.joining import NotJoinable, joined, key_of, split
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.records.calls import CALL
from tests.support.joined import (
    DTYPES,
    FIXED,
    RAGGED,
    TENSORS,
    TRACE,
    add,
    elements_of,
    ints,
    of_bytes,
    request,
    respond,
    set_parameter,
    tensor,
)

TEXTS = st.lists(st.binary(max_size=6), min_size=1, max_size=5)


@given(st.lists(TEXTS, min_size=1, max_size=6), st.data())
def test_every_request_gets_what_it_would_get_alone(texts, data):
    """For any texts, and any outputs of which some are not selected."""
    requests = [request(*each, id=str(place)) for place, each in enumerate(texts)]
    assert len({key_of(each) for each in requests}) == 1
    selected = data.draw(st.sets(st.sampled_from([*FIXED, *RAGGED])))
    with_lengths = [*selected, *{RAGGED[name][2] for name in selected if name in RAGGED}, "timing_ms"]
    names = data.draw(st.permutations(with_lengths))
    unselected = [name for name in TENSORS if name not in names]
    parts = split(respond(joined(requests), names, unselected), requests)
    assert parts == [respond(each, names, unselected) for each in requests]


@pytest.mark.parametrize("dtype", ["INT32", "INT64", "UINT32", "UINT64"])
def test_lengths_may_be_integers_of_any_kind(dtype):
    requests = [request(b"a", b"b"), request(b"c")]
    response = service_pb2.ModelInferResponse()
    add(response, "words", "UINT8", [6], b"abcdef")
    add(response, "words_lengths", dtype, [3], np.array([1, 0, 5], DTYPES[dtype]).tobytes())
    parts = split(response, requests)
    assert [tensor(part, "words") for part in parts] == [([1], b"a"), ([5], b"bcdef")]


def test_every_ragged_tensor_of_the_contract_is_split_by_its_lengths():
    """Those that sie_triton.contract names, in one response."""
    tensors = {
        each.name: each
        for output in ENCODE_OUTPUTS.values()
        for each in (*output.tensors, output.quantized, output.scales)
        if each is not None and each.lengths
    }
    response = service_pb2.ModelInferResponse()
    for name, each in tensors.items():
        row_bytes = 4 * (2 if len(each.dims) > 1 else 1)
        raw = b"".join(bytes([place]) * row_bytes for place in range(5))
        add(response, name, "FP32", [5, 2] if len(each.dims) > 1 else [5], raw)
    for name in {each.lengths for each in tensors.values()}:
        add(response, name, "INT32", [3], np.array([2, 0, 3], "<i4").tobytes())
    first, second = split(response, [request(b"a"), request(b"b", b"c")])
    assert {"multivector", "sparse_indices", "sparse_values", "multivector_scales"} <= set(tensors)
    for name in tensors:
        assert [tensor(part, name)[0][0] for part in (first, second)] == [2, 3]
        assert tensor(first, name)[1] + tensor(second, name)[1] == tensor(response, name)[1]


def test_all_inputs_of_items_are_joined_and_the_others_are_not():
    requests = [
        request(b"a", inputs={"query": [b"q"], "image": [b"1"]}, score_mode="dense"),
        request(b"b", b"c", inputs={"query": [b"q"], "image": [b"2", b""]}, score_mode="dense"),
    ]
    assert key_of(requests[0]) == key_of(requests[1])
    whole = joined(requests)
    assert elements_of(whole, "query") == [b"q"]
    assert elements_of(whole, "image") == [b"1", b"2", b""]
    assert elements_of(whole) == [b"a", b"b", b"c"]
    assert whole.parameters["score_mode"].string_param == "dense"


def test_requests_are_not_changed():
    requests = [request(b"a", id="1", timeout=5), request(b"b", id="2", timeout=4)]
    copies = [service_pb2.ModelInferRequest.FromString(each.SerializeToString()) for each in requests]
    split(respond(joined(requests)), requests)
    assert requests == copies


def test_a_joined_request_is_that_of_no_one_client():
    """It cannot be cancelled by one of them, nor does it go on one's trace; its time is the longest of theirs."""
    parameters = {CALL: "1.2", "x_request_id": "r", "traceparent": f"{TRACE}-00", "normalize": True}
    times = 500, 900, 200
    whole = joined([request(b"a", id=f"{time}", timeout=time, **parameters) for time in times])
    assert (set(whole.parameters), whole.id) == ({"normalize", "timeout"}, "")
    assert whole.parameters["timeout"].int64_param == 900
    assert "timeout" not in joined([request(b"a", timeout=5), request(b"b")]).parameters


def test_texts_and_what_belongs_to_one_request_may_differ():
    first = request(b"a", id="1", timeout=5, x_request_id="r", traceparent=f"{TRACE}-00", **{CALL: "1"})
    second = request(b"b", b"c", id="2", timeout=6, x_request_id="s", **{CALL: "2"})
    assert key_of(first) is not None
    assert key_of(first) == key_of(second) == key_of(request(b"d"))


def test_the_order_of_parameters_makes_no_difference():
    assert key_of(request(b"a", x=1, y=2, z=3)) == key_of(request(b"b", z=3, y=2, x=1))


def with_output(**parameters: int) -> Any:
    made = request(b"a")
    output = made.outputs.add(name="dense")
    for name, value in parameters.items():
        output.parameters[name].int64_param = value
    return made


def with_version(version: str) -> Any:
    made = request(b"a")
    made.model_version = version
    return made


MAX_PARTS = SidecarLimits.max_joined_parts

DIFFERENT = {
    "model": (request(b"a"), request(b"a", model="other")),
    "version": (with_version("1"), with_version("2")),
    "parameter": (request(b"a", normalize=True), request(b"a", normalize=False)),
    "kind of parameter": (request(b"a", threshold=1), request(b"a", threshold=1.0)),
    "query": (request(b"a", inputs={"query": [b"q"]}), request(b"a", inputs={"query": [b"r"]})),
    "cut of labels": (request(b"a", inputs={"labels": [b"xy"]}), request(b"a", inputs={"labels": [b"x", b"y"]})),
    "name of an input": (request(b"a", inputs={"query": [b"q"]}), request(b"a", inputs={"query_image": [b"q"]})),
    "kind of item": (request(b"a"), request(inputs={"image": [b"a"]})),
    "selected outputs": (request(b"a"), with_output()),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_requests_that_want_different_things_are_not_joined(difference):
    one, other = DIFFERENT[difference]
    assert key_of(one) != key_of(other)


def changed(change: Callable[[Any], Any]) -> Any:
    made = request(b"a", b"b", inputs={"query": [b"q"]})
    change(made)
    return made


def lying(number: int, *texts: bytes) -> Any:
    made = request(*texts)
    made.inputs[0].shape[0] = number
    return made


ALONE = {
    "documents": request(inputs={"document": [b"%PDF"]}),
    "texts in chunks": request(b"a", chunk_tokens=64),
    "a recorded trace": request(b"a", traceparent=f"{TRACE}-01"),
    "a recorded trace with another flag": request(b"a", traceparent=f"{TRACE}-03"),
    "a recorded trace in another case": changed(lambda each: set_parameter(each, "Traceparent", f"{TRACE}-01")),
    "no inputs": service_pb2.ModelInferRequest(model_name="m"),
    "no items": request(inputs={"query": [b"q"]}),
    "no texts": request(),
    "shared memory": changed(lambda each: set_parameter(each.inputs[1], "shared_memory_region", "r")),
    "classes": changed(lambda each: set_parameter(each.outputs.add(name="scores"), "classification", 2)),
    "contents that are not raw": changed(lambda each: each.ClearField("raw_input_contents")),
    "contents beside raw ones": changed(lambda each: each.inputs[1].contents.bytes_contents.append(b"b")),
    # What a client says of its items, so that it gets those of another one, or nobody gets an answer.
    "fewer items than it says": lying(2, b"x"),
    "more items than it says": lying(1, b"x", b"y"),
    "a negative number of items": lying(-1, b"x"),
    "no shape": changed(lambda each: each.inputs[1].ClearField("shape")),
    "rows of items": changed(lambda each: each.inputs[1].shape.append(1)),
    "different numbers of items": request(b"a", inputs={"image": [b"1", b"2"]}),
    "too many items": request(*[b""] * (SidecarLimits.max_joined_items + 1)),
    "too many inputs": request(
        b"a", inputs={f"input_{place}": [b""] for place in range(SidecarLimits.max_joined_parts)}
    ),
    "too many parameters": request(b"a", **{f"x{place}": 0 for place in range(MAX_PARTS)}),
}


@pytest.mark.parametrize("reason", ALONE)
def test_a_request_stays_alone_because_of(reason):
    assert key_of(ALONE[reason]) is None


def test_elements_of_too_many_items_are_not_counted(monkeypatch):
    """A client may send any number of empty ones, and counting them takes time that all other requests wait."""
    monkeypatch.setattr(joining, "_element_ends", lambda raw, number: pytest.fail(f"{number} elements were counted"))
    assert key_of(request(*[b""] * (SidecarLimits.max_joined_items + 1))) is None


def test_a_large_query_makes_no_large_key():
    """Keys of requests that cannot be joined are kept."""
    one, other = (request(b"a", inputs={"query": [last * 100_000]}) for last in (b"q", b"r"))
    assert key_of(one) != key_of(other)
    assert len(key_of(one)) == len(key_of(request(b"a"))) < 100


# --- responses that cannot be split

TWO, ONE = request(b"a", b"b"), request(b"c")


def response_with(*tensors: tuple[str, str, list[int], bytes]) -> Any:
    response = service_pb2.ModelInferResponse()
    for each in tensors:
        add(response, *each)
    return response


def without_contents() -> Any:
    response = respond(joined([TWO, ONE]))
    response.ClearField("raw_output_contents")
    return response


TOGETHER = {
    "pages": response_with(("num_pages", "INT32", [3], ints(0, 2, 0)), ("dense", "FP32", [4], bytes(16))),
    "pages beside a row per item": response_with(("num_pages", "INT32", [3], ints(0, 0, 0))),
    "too few bytes": response_with(("dense", "FP32", [3, 1], bytes(14))),
    "too few rows": response_with(("dense", "FP32", [2, 1], bytes(8))),
    "one row for all": response_with(("total", "FP32", [1], bytes(4))),
    "too few lengths": response_with(("x", "INT32", [3], bytes(12)), ("x_lengths", "INT32", [2], ints(1, 2))),
    "lengths that are not selected": response_with(("x", "INT32", [3], bytes(12)), ("x_lengths", "INT32", [0], b"")),
    "lengths of fewer rows": response_with(("x", "INT32", [3], bytes(12)), ("x_lengths", "INT32", [3], ints(1, 1, 0))),
    "lengths that are not integers": response_with(
        ("x", "INT32", [3], bytes(12)), ("x_lengths", "FP32", [3], np.ones(3, "<f4").tobytes())
    ),
    "a missing element": response_with(("x", "BYTES", [3], of_bytes([b"a", b"b"]))),
    "an element that is cut": response_with(("x", "BYTES", [3], of_bytes([b"a", b"b", b"cde"])[:-1])),
    "a missing element of a row": response_with(("x", "BYTES", [3, 2], of_bytes([b"a"] * 5))),
    "contents that are not raw": without_contents(),
}


@pytest.mark.parametrize("reason", TOGETHER)
def test_a_response_cannot_be_split_because_of(reason):
    with pytest.raises(NotJoinable):
        split(TOGETHER[reason], [TWO, ONE])


def test_a_model_that_reads_pages_can_be_split_if_it_read_none():
    response = response_with(("num_pages", "INT32", [0], b""), ("dense", "FP32", [3, 1], ints(1, 2, 3)))
    assert [tensor(part, "dense") for part in split(response, [TWO, ONE])] == [([2, 1], ints(1, 2)), ([1, 1], ints(3))]
    assert [tensor(part, "num_pages") for part in split(response, [TWO, ONE])] == [([0], b"")] * 2
