"""The fields of serialized messages, as protobuf itself reads them."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.kserve import fields
from sie_triton.errors import InputError
from tests.support.joined import request

MESSAGE = request(b"a" * 300, b"", id="7", model="org__m", timeout=5, x="y" * 200, z=1.5).SerializeToString()


def parts(message: bytes) -> list[bytes]:
    """Return the bytes of each field, without gaps."""
    found = list(fields(message, 1000))
    assert [start for _, start, _ in found] == [0, *(end for *_, end in found)][: len(found)]
    return [message[start:end] for _, start, end in found]


@given(st.permutations(parts(MESSAGE)), st.data())
def test_any_part_of_a_message_is_read_as_protobuf_reads_it(read, data):
    chosen = read[: data.draw(st.integers(0, len(read)))]
    message = b"".join(chosen)
    assert parts(message) == chosen
    names = {field.number: field.name for field in service_pb2.ModelInferRequest.DESCRIPTOR.fields}
    found = {names[number] for number, *_ in fields(message, 1000)}
    assert found == {field.name for field, _ in service_pb2.ModelInferRequest.FromString(message).ListFields()}


@given(st.binary(max_size=40))
def test_what_is_no_message_for_us_is_none_for_protobuf(data):
    try:
        list(fields(data, 1000))
    except DecodeError:
        groups = any(byte & 7 in (3, 4) for byte in data)  # protobuf skips these
        if not groups:
            with pytest.raises(DecodeError):
                service_pb2.ModelInferRequest.FromString(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a" + b"\xff" * 11,
        b"\x00\x00",
        b"\x03",
        b"\x0f",
        b"\x09abc",
        b"\x80" * 10 + b"\x01",
    ],
    ids=bytes.hex,
)
def test_bytes_that_are_no_fields_are_refused(data):
    with pytest.raises(DecodeError):
        list(fields(data, 1000))


def test_fields_are_counted_before_they_are_read():
    assert len(list(fields(b"\x2a\x00" * 1000, 1000))) == 1000
    with pytest.raises(InputError, match="more than 1000 fields"):
        list(fields(b"\x2a\x00" * 1001, 1000))
