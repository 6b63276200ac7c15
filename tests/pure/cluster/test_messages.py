"""Headers and bodies of the messages between gateways and sidecars."""

from contextlib import suppress
from dataclasses import asdict, replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sie_triton.cluster.messages import (
    MAX_HEADER_BYTES,
    MAX_TEXT,
    VERSION,
    Answer,
    Cancel,
    Health,
    Lease,
    Malformed,
    Question,
    Wanted,
    Work,
    with_parameters,
)

KINDS = (Work, Answer, Question, Cancel, Wanted, Health)

NAMES = st.text(max_size=20)
NUMBERS = st.integers(0, 2**63)
HEADERS = st.one_of(
    st.builds(Work, NAMES, NUMBERS, st.floats(0, 1e12), NAMES, NUMBERS, NAMES),
    st.builds(Answer, NUMBERS, NAMES, st.integers(0, 16), NAMES, st.floats(0, 1e9), NAMES, NUMBERS, NUMBERS),
    st.builds(Question, NAMES),
    st.builds(Cancel, NAMES, NUMBERS),
    st.builds(Wanted, NAMES),
    st.builds(
        Health,
        worker=NAMES,
        pool=NAMES,
        profile=NAMES,
        is_ready=st.booleans(),
        models=st.lists(NAMES, max_size=3),
        ensembles=st.lists(NAMES, max_size=3),
        resident=st.dictionaries(NAMES, st.lists(st.floats(0, 1e12), min_size=2, max_size=2), max_size=3),
        free_bytes=NUMBERS,
        open=NUMBERS,
        limit=NUMBERS,
        claims=st.lists(NAMES, max_size=3),
        refused=st.lists(NAMES, max_size=3),
        gpu_type=NAMES,
    ),
)


def message(*fields, body=b"") -> bytes:
    head = msgpack.packb(fields)
    return len(head).to_bytes(4, "little") + head + body


@given(HEADERS, st.binary(max_size=50))
def test_header_and_body_are_read_as_they_were_written(header, body):
    assert type(header).read(header.packed(body)) == (header, body)


@given(HEADERS, st.data())
def test_a_cut_header_is_malformed(header, data):
    written = header.packed()
    with pytest.raises(Malformed):
        type(header).read(written[: data.draw(st.integers(0, len(written) - 1))])


@given(st.sampled_from(KINDS), st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_message_or_malformed(kind, data, has_size):
    """No other exception, which would end the task of a sidecar or gateway."""
    with suppress(Malformed):
        kind.read(len(data).to_bytes(4, "little") + data if has_size else data)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, str(VERSION), None])
def test_another_version_is_malformed(version):
    assert Cancel.read(message(VERSION, "g", 7)) == (Cancel("g", 7), b"")
    with pytest.raises(Malformed):
        Cancel.read(message(version, "g", 7))


@pytest.mark.parametrize("fields", [(), ("g",), ("g", 7, "more")])
def test_another_number_of_fields_is_malformed(fields):
    """Even where the missing fields have defaults."""
    with pytest.raises(Malformed):
        Cancel.read(message(VERSION, *fields))
    with pytest.raises(Malformed):
        Work.read(message(VERSION, "g", 7, 5.0, "m"))


def test_a_header_that_is_no_list_is_malformed():
    for head in (msgpack.packb(7), msgpack.packb({"a": 1}), msgpack.packb(None), b"\xc1"):
        with pytest.raises(Malformed):
            Wanted.read(len(head).to_bytes(4, "little") + head)


LEASE = Lease("eval", "p", {"l4": 1}, {"l4": 2}, 0, 5.0, 6.0)
HEALTH = Health("w", "p", "l4", True, ["m"], ["m-score"], {"m": [5, 1.5]}, 9, 1, 10, ["m"], refused=["r"])


@pytest.mark.parametrize(
    ("header", "name", "wrong"),
    [
        (HEALTH, "claims", [{}]),
        (HEALTH, "models", ["m", 5]),
        (HEALTH, "resident", {"m": 5}),
        (HEALTH, "resident", {"m": [5]}),
        (HEALTH, "resident", {"m": [5, float("nan")]}),
        (HEALTH, "resident", {5: [5, 5]}),
        (HEALTH, "limit", True),
        (HEALTH, "is_ready", 1),
        (LEASE, "gpus", {"l4": None}),
        (LEASE, "at", float("inf")),
        (LEASE, "renewed_at", False),
    ],
)
def test_what_a_header_contains_is_checked_throughout(header, name, wrong):
    """A heartbeat that is wrong inside would fail every request until its worker is forgotten."""
    kind, fields = type(header), asdict(header)
    assert kind.read(message(VERSION, *fields.values())) == (header, b"")
    with pytest.raises(Malformed):
        kind.read(message(VERSION, *{**fields, name: wrong}.values()))


# --- answers in parts

ANSWER = Answer(7, "w", 3, "text", 1.5, "receipt")


@given(st.binary(max_size=4000), st.integers(1, 1000))
def test_the_parts_of_an_answer_have_its_body_in_order(body, room):
    max_bytes = MAX_HEADER_BYTES + room
    written = list(ANSWER.parts(body, max_bytes))
    read = [Answer.read(each) for each in written]
    assert all(len(each) <= max_bytes for each in written)
    assert b"".join(part for _, part in read) == body
    assert [answer.part for answer, _ in read] == list(range(len(read)))
    assert {answer.num_parts for answer, _ in read} == {len(read)}
    assert all(part for _, part in read) or len(read) == 1
    assert {replace(answer, part=0, num_parts=1) for answer, _ in read} == {ANSWER}


@pytest.mark.parametrize(("num_bytes", "num_parts"), [(99, 1), (100, 1), (101, 2), (200, 2)])
def test_a_body_is_cut_only_if_it_has_to_be(num_bytes, num_parts):
    assert len(list(ANSWER.parts(bytes(num_bytes), MAX_HEADER_BYTES + 100))) == num_parts


@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
def test_an_answer_with_a_long_text_keeps_to_the_size_of_a_message(character):
    answer = Answer(2**63, "w" * 64, 3, character * 100_000, 1.5, "r" * 1000)
    max_bytes = MAX_HEADER_BYTES + 100
    written = list(answer.parts(bytes(250), max_bytes))
    assert len(written) == 3
    assert all(len(each) <= max_bytes for each in written)
    assert Answer.read(written[0])[0].text == character * MAX_TEXT


# --- parameters of a serialized request


def request(**parameters: int | str) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name="m", id="7")
    made.inputs.add(name="text", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(b"\x01\x00\x00\x00a")
    for name, value in parameters.items():
        setattr(made.parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)
    return made


@given(st.dictionaries(st.sampled_from("abc"), NAMES | NUMBERS.map(lambda n: n // 2)))
def test_parameters_replace_those_of_the_same_name_and_nothing_else(parameters):
    own = {"a": "own", "d": 4}
    changed = with_parameters(request(**own).SerializeToString(), parameters)
    assert service_pb2.ModelInferRequest.FromString(changed) == request(**{**own, **parameters})


def test_a_request_is_not_written_again_to_add_parameters():
    """Its bytes may be many."""
    data = request().SerializeToString()
    assert with_parameters(data, {"timeout": 5}).startswith(data)
    assert with_parameters(data, {}) == data
