"""Bad input: a clear error for its sender, a correct answer for everybody beside it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from tests.conftest import TINY
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
    "empty vector": (encode(tensor("text", [])), "text: is empty; send at least one item"),
    "non-UTF-8": (encode(tensor("text", [b"ok", b"\xc3\x28"])), r"text\[1\]: not valid UTF-8 \(byte 0xc3 at 0\)"),
    "unknown parameter": (encode(TEXT, dimension=3), "parameter dimension: unknown here; allowed are .*, dimensions"),
    "no message of preprocess": (inference([[1] * 20]), "message: this step accepts only the output of the previous"),
    "two batch rows": (inference([[1] * 20] * 2), r"message: has shape \[2, 20\]; send \[1, k\]"),
}


@pytest.fixture(scope="module")
def expected(server):
    with SIEClient(server.grpc) as client:
        return np.stack([client.encode(TINY, text)["dense"] for text in NEIGHBOURS])


def test_bad_requests_get_the_reason_and_their_neighbours_are_answered(server, expected):
    """All are sent at once, so that they share Triton's batches."""
    with (
        SIEClient(server.grpc) as client,
        triton.InferenceServerClient(server.grpc) as raw,
        ThreadPoolExecutor(len(NEIGHBOURS) + len(BAD)) as pool,
    ):
        neighbours = [pool.submit(client.encode, TINY, text) for text in NEIGHBOURS[:16]]
        bad = {name: pool.submit(raw.infer, **request) for name, (request, _) in BAD.items()}
        neighbours += [pool.submit(client.encode, TINY, text) for text in NEIGHBOURS[16:]]
        for name, (_, complaint) in BAD.items():
            with pytest.raises(InferenceServerException, match=complaint) as caught:
                bad[name].result()
            assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
            assert "Traceback" not in str(caught.value)
        assert_parity(np.stack([n.result()["dense"] for n in neighbours]), expected, TO_ITSELF)
