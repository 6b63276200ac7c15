"""Messages between two steps: all arrives as it was sent, and nothing else is taken."""

from pathlib import Path

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import InputError
from sie_triton.pipeline.stages.context import Context
from sie_triton.pipeline.stages.message import FRONT, SEAL_BYTES, Messages, Seal
from tests.support.stages import FakeRequest

TENSORS = [
    Tensor("ids", "INT32", (-1,)),
    Tensor("bytes", "UINT8", (-1,)),
    Tensor("vectors", "FP32", (-1, -1)),
    Tensor("pixels", "UINT8", (-1,), is_large=True),
]
ROWS = {
    "vectors": np.arange(6, dtype=np.float32).reshape(2, 3),
    "ids": np.array([7, 8, 9], np.int32),
    "pixels": np.arange(5, dtype=np.uint8),
    "bytes": np.array([1, 2, 3, 4, 5], np.uint8),
}
CONTEXT = Context(VERBS["encode"], {"normalize": False}, "an id \ud800", num_items=2, pages=[[1], []])
NOT_SEALED = "this step accepts only the output of the previous step"


def messages(sender="preprocess"):
    return Messages(Seal(Path()), sender, TENSORS)


def request_of(outputs, **changes):
    return FakeRequest(**{name: array[None] for name, array in {**outputs, **changes}.items()})


@pytest.mark.parametrize("names", [(), ("ids",), ("vectors",), ("pixels", "bytes"), tuple(ROWS)])
def test_context_and_arrays_arrive_as_they_were_sent(names):
    given = {name: ROWS[name] for name in names}
    outputs = messages().write(CONTEXT, given, cost=41)
    assert outputs.keys() == {"message", *({"pixels"} & given.keys())}
    assert FRONT.unpack_from(outputs["message"], SEAL_BYTES)[0] == 41
    for copy in (True, False):
        context, rows = messages().read(request_of(outputs), copy=copy)
        assert context == CONTEXT
        assert rows.keys() == given.keys()
        for name, array in given.items():
            assert rows[name].dtype == array.dtype
            np.testing.assert_array_equal(rows[name], array)


def test_arrays_have_the_dtypes_of_the_contract():
    outputs = messages().write(CONTEXT, {"ids": np.array([1, 2]), "vectors": np.ones((1, 2))})
    _, rows = messages().read(request_of(outputs), copy=True)
    assert (rows["ids"].dtype, rows["vectors"].dtype) == (np.int32, np.float32)


def test_copied_arrays_outlive_the_request():
    outputs = messages().write(CONTEXT, ROWS)
    sent = {name: array.copy() for name, array in outputs.items()}
    copied, borrowed = (messages().read(request_of(sent), copy=copy)[1] for copy in (True, False))
    for array in sent.values():
        array[:] = 0
    assert copied["ids"].tolist() == [7, 8, 9]
    assert copied["pixels"].tolist() == ROWS["pixels"].tolist()
    assert not borrowed["ids"].any()


def test_no_byte_of_a_message_may_change_but_those_of_floats():
    outputs = messages().write(CONTEXT, ROWS)
    message = outputs["message"]
    _, end, _ = FRONT.unpack_from(message, SEAL_BYTES)
    assert len(message) == end + ROWS["vectors"].nbytes
    for place in range(len(message)):
        changed = message.copy()
        changed[place] ^= 1
        request = request_of(outputs, message=changed)
        if place < end:
            with pytest.raises(InputError, match=f"message: {NOT_SEALED}"):
                messages().read(request, copy=True)
        else:
            assert messages().read(request, copy=True)[0] == CONTEXT


def test_a_message_of_another_length_is_refused():
    outputs = messages().write(CONTEXT, ROWS)
    message = outputs["message"]
    for other in (*(message[:size] for size in range(len(message))), np.append(message, np.uint8(0))):
        with pytest.raises(InputError, match=f"message: {NOT_SEALED}"):
            messages().read(request_of(outputs, message=other), copy=False)


@pytest.mark.parametrize("pixels", [ROWS["pixels"][:-1], np.append(ROWS["pixels"], np.uint8(0))])
def test_a_large_tensor_of_another_size_is_refused(pixels):
    outputs = messages().write(CONTEXT, ROWS)
    with pytest.raises(InputError, match=f"pixels: {NOT_SEALED}"):
        messages().read(request_of(outputs, pixels=pixels), copy=True)


def test_a_message_in_another_number_of_batch_rows_is_refused():
    message = messages().write(CONTEXT, {})["message"]
    for rows in (0, 2):
        with pytest.raises(InputError, match="message: has shape"):
            messages().read(FakeRequest(message=np.repeat(message[None], rows, axis=0)), copy=True)


def test_the_message_of_another_step_is_refused():
    outputs = messages("inference").write(CONTEXT, ROWS)
    with pytest.raises(InputError, match=NOT_SEALED):
        messages("preprocess").read(request_of(outputs), copy=True)


def test_processes_of_one_directory_share_a_key_that_only_this_user_can_read(tmp_path, own_keys):
    first, again = Seal(tmp_path), Seal(tmp_path)
    (tmp_path / "other").mkdir()
    of_first = first.keyed(b"a").digest()
    assert again.keyed(b"a").digest() == of_first
    assert Seal(tmp_path / "other").keyed(b"a").digest() != of_first
    assert (tmp_path / "seal.key").stat().st_mode & 0o077 == 0
