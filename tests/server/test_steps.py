"""The steps of a model, called directly: they take what the step before them sent, and nothing a client made up."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from tests.conftest import BGE_M3, COLBERT, MINILM, SPLADE
from tests.support.stages import sent

STEPS = "this step accepts only the output of the previous step"


def tensor(name, array):
    dtype = {"i4": "INT32", "i8": "INT64", "f4": "FP32", "u1": "UINT8"}.get(array.dtype.str[1:], "BYTES")
    made = triton.InferInput(name, list(array.shape), dtype)
    made.set_data_from_numpy(array)
    return made


def call(raw, model, tensors, **options):
    return raw.infer(model, [tensor(name, array) for name, array in tensors.items()], **options)


def ints(*values, dtype=np.int32):
    return np.array([values], dtype)


@pytest.fixture(scope="module")
def raw(server):
    with triton.InferenceServerClient(server.grpc) as raw:
        yield raw


@pytest.fixture
def unharmed(server):
    """Every process of these models is still there afterwards, and the model answers as before."""
    models = [COLBERT, SPLADE, BGE_M3, MINILM]
    with SIEClient(server.grpc) as client:
        before = [client.encode(model, "hello vine") for model in models]
        pids = [server.status(model, stage)["pid"] for model in models for stage in ("preprocess", "inference")]
        yield
        after = [client.encode(model, "hello vine") for model in models]
    assert pids == [server.status(model, stage)["pid"] for model in models for stage in ("preprocess", "inference")]
    # The first answer after a load was seen to differ from all later ones in the last bit (6e-8).
    assert np.allclose(before[0]["multivector"], after[0]["multivector"], atol=1e-5)
    assert np.allclose(before[3]["dense"], after[3]["dense"], atol=1e-5)


def test_inference_refuses_client_messages_beside_deferred_work(raw, server, unharmed):
    """An error that leaves `execute` beside a deferred request used to end tritonserver."""
    hostile = ints(*sent("preprocess", {}, num_items=1)["message"][0], dtype=np.uint8)
    with SIEClient(server.grpc) as client, ThreadPoolExecutor(2) as pool:
        bulk = [pool.submit(client.encode, MINILM, ["word " * 200] * 24) for _ in range(2)]
        while not all(each.done() for each in bulk):
            with pytest.raises(InferenceServerException, match=STEPS):
                call(raw, f"{triton_name(MINILM)}-inference", {"message": hostile})
        assert all(len(each.result()) == 24 for each in bulk)


def test_steps_accept_only_unmodified_output_of_the_previous_step(raw, server, unharmed):
    """A client may look at each step of its own request, but change nothing on the way."""
    model = triton_name(MINILM)
    text = np.array([[b"hello vine"]], object)
    asked = arrays(call(raw, f"{model}-preprocess", {"encode_text": text}))
    rows = arrays(call(raw, f"{model}-inference", asked))
    answer = arrays(call(raw, f"{model}-postprocess", rows))
    with SIEClient(server.grpc) as client:
        np.testing.assert_allclose(answer["dense"][0, 0], client.encode(MINILM, "hello vine")["dense"], atol=1e-6)
    changed = asked["message"].copy()
    changed[0, 8] ^= 1
    for step, message in (("inference", changed), ("inference", rows["message"]), ("postprocess", asked["message"])):
        with pytest.raises(InferenceServerException, match=STEPS):
            call(raw, f"{model}-{step}", {"message": message})


def test_each_output_may_be_asked_for_alone(raw):
    text = tensor("text", np.array([b"hello vine"], object))
    every = arrays(raw.infer(triton_name(COLBERT), [text]))
    for name in every:
        answer = raw.infer(triton_name(COLBERT), [text], outputs=[triton.InferRequestedOutput(name)])
        assert arrays(answer).keys() == {name}
        if name != "timing_ms":
            np.testing.assert_array_equal(answer.as_numpy(name), every[name])


def test_an_empty_batch_delays_only_its_sender(raw, server, unharmed):
    """Triton itself never forms a batch of such a request: only its sender waits, and gets no response."""
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        call(raw, f"{triton_name(COLBERT)}-preprocess", {"encode_text": np.zeros((0, 0), object)}, client_timeout=1)


def arrays(response):
    return {output.name: response.as_numpy(output.name) for output in response.get_response().outputs}
