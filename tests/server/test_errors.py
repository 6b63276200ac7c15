"""Bad input: a clear error for its sender, a correct answer for everybody beside it."""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from tests.conftest import TINY
from tests.support.controller import wait_for
from tests.support.parity import TO_ITSELF, assert_parity

NAME = triton_name(TINY)
NEIGHBOURS = [f"neighbour number {i} says hello" for i in range(31)]


def tensor(name, values, dtype="BYTES"):
    array = np.array(values, {"BYTES": object, "INT32": np.int32, "UINT8": np.uint8}[dtype])
    made = triton.InferInput(name, list(array.shape), dtype)
    made.set_data_from_numpy(array)
    return made


def encode(*inputs, **parameters):
    return {"model_name": NAME, "inputs": list(inputs), "parameters": parameters}


def inference(message):
    return {"model_name": f"{NAME}-inference", "inputs": [tensor("message", message, "UINT8")]}


TEXT = tensor("text", [b"hello"])

BAD = {
    "wrong dtype": (encode(tensor("text", [1, 2], "INT32")), "'text' data-type is 'INT32'"),
    "no input": (encode(), r"missing required input\(s\) \['text'\]"),
    "wrong rank": (encode(tensor("text", [[b"a"]])), "'text'.*Expected \\[-1\\]"),
    "empty vector": (encode(tensor("text", [])), "text: is empty; send at least one item"),
    "non-UTF-8": (encode(tensor("text", [b"ok", b"\xc3\x28"])), r"text\[1\]: not valid UTF-8 \(byte 0xc3 at 0\)"),
    "unknown parameter": (encode(TEXT, dimension=3), "parameter dimension: unknown here; allowed are dimensions"),
    "no message of preprocess": (inference([[1] * 20]), "message: this step accepts only the output of the previous"),
    "two batch rows": (inference([[1] * 20] * 2), r"message: has shape \[2, 20\]; send \[1, k\]"),
}


@pytest.fixture(scope="module")
def expected(server):
    with SIEClient(server.grpc) as client:
        return np.stack([client.encode(TINY, text)["dense"] for text in NEIGHBOURS])


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_gets_the_reason_and_31_neighbours_are_answered(server, expected, case):
    request, complaint = BAD[case]
    with (
        SIEClient(server.grpc) as client,
        triton.InferenceServerClient(server.grpc) as raw,
        ThreadPoolExecutor(32) as pool,
    ):
        neighbours = [pool.submit(client.encode, TINY, text) for text in NEIGHBOURS[:16]]
        bad = pool.submit(raw.infer, **request)
        neighbours += [pool.submit(client.encode, TINY, text) for text in NEIGHBOURS[16:]]
        with pytest.raises(InferenceServerException, match=complaint) as caught:
            bad.result()
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert "Traceback" not in str(caught.value)
        assert_parity(np.stack([n.result()["dense"] for n in neighbours]), expected, TO_ITSELF)


@pytest.mark.parametrize(
    ("field", "given"), [("parameters", b'{"instruction": "\xed\xa0\x80"}'), ("id", b'"\xed\xa0\x80"')]
)
def test_a_parameter_or_id_with_invalid_utf_8_is_refused(server, field, given):
    """Triton's JSON reader lets it through."""
    body = b'{"%s": %s, "inputs": [%s]}' % (
        field.encode(),
        given,
        b'{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}',
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/v2/models/{NAME}/infer", body))
    answer = caught.value.read().decode()
    assert caught.value.code == 400
    assert f"{field}: cannot be read; send UTF-8 text" in answer
    assert "Traceback" not in answer
    wait_for(lambda: server.status(TINY, "preprocess")["num_open"] == 0)  # a deferred request counts until it is sent
