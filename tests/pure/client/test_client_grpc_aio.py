"""Our objects for inference over gRPC send and read the same messages as tritonclient's."""

import numpy as np
import pytest
import tritonclient.grpc as tritonclient
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request

from sie_triton.client import grpc_aio

PARAMETERS = {"a": "text", "b": True, "c": 7, "d": 0.5, "e": np.float64(0.25)}


def request_inputs(module):
    texts = np.array([b"one", b"", "zwei é".encode()], np.object_)
    inputs = []
    for name, values, kind in (
        ("text", texts, "BYTES"),
        ("none", texts[:0], "BYTES"),
        ("n", np.eye(2, dtype="<f4"), "FP32"),
    ):
        inputs.append(module.InferInput(name, list(values.shape), kind))
        inputs[-1].set_data_from_numpy(values)
    return inputs


@pytest.mark.parametrize("timeout", [None, 5000])
def test_a_request_is_the_same(timeout):
    theirs = _get_inference_request(
        "m", request_inputs(tritonclient), "", "", None, 0, False, False, 0, timeout, PARAMETERS
    )
    assert grpc_aio.request_of("m", request_inputs(grpc_aio), PARAMETERS, timeout) == theirs


def test_a_response_is_read_the_same():
    message = service_pb2.ModelInferResponse()
    values = {
        "words": (b"\3\0\0\0one\0\0\0\0", "BYTES", [2]),
        "dense": (np.arange(6, dtype="<f4").tobytes(), "FP32", [2, 3]),
        "empty": (b"", "UINT8", [0, 4]),
        "flags": (b"\1\0", "BOOL", [2]),
    }
    for name, (raw, kind, shape) in values.items():
        message.outputs.add(name=name, datatype=kind, shape=shape)
        message.raw_output_contents.append(raw)
    ours, theirs = grpc_aio.InferResult(message), tritonclient.InferResult(message)
    for name in values:
        assert ours.as_numpy(name).dtype == theirs.as_numpy(name).dtype
        assert np.array_equal(ours.as_numpy(name), theirs.as_numpy(name))
        assert ours.as_numpy(name).shape == theirs.as_numpy(name).shape
    assert ours.as_numpy("other") is None
    assert ours.get_response() is message
