"""The steps of a model, called directly: they take what the step before them sent, and nothing a client made up."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.names import triton_name
from tests.conftest import BGE_M3, COLBERT, MINILM, SPLADE, TINY
from tests.support.stages import context

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


VECTORS = np.ones((1, 3, 32), np.float32)

ASKED = {"output_types": "muvera,multivector"}

HOSTILE = {
    "lengths that wrap around": {"multivector_lengths": ints(2**31 - 1, -(2**31) + 4), "lengths": ints(2, 1)},
    "a length that takes from a neighbour": {"multivector_lengths": ints(5, -2), "lengths": ints(2, 1)},
    "rows of another width": {
        "multivector": np.ones((1, 3, 7), np.float32),
        "multivector_lengths": ints(2, 1),
        "lengths": ints(2, 1),
    },
    "a million items of nothing": {
        "multivector": np.ones((1, 0, 32), np.float32),
        "multivector_lengths": np.zeros((1, 10**6), np.int32),
        "lengths": np.zeros((1, 10**6), np.int32),
    },
    "what looks right": {"multivector_lengths": ints(2, 1), "lengths": ints(2, 1)},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_postprocess_takes_nothing_from_clients(raw, unharmed, case):
    sent = {"multivector": VECTORS, "context": context(options=ASKED), **HOSTILE[case]}
    with pytest.raises(InferenceServerException, match=STEPS) as caught:
        call(raw, f"{triton_name(COLBERT)}-postprocess", sent)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_inference_refuses_client_contexts_beside_deferred_work(raw, server, unharmed):
    """An error that leaves `execute` beside a deferred request used to end tritonserver."""
    model = triton_name(MINILM)
    features = {"input_ids": ints(101, 102), "lengths": ints(2), "prompt_tokens": ints(0), "cost": ints(2)}
    with SIEClient(server.grpc) as client, ThreadPoolExecutor(2) as pool:
        bulk = [pool.submit(client.encode, MINILM, ["word " * 200] * 24) for _ in range(2)]
        while not all(each.done() for each in bulk):
            for hostile in (context(preprocessed_ns=-(2**63)), context(ticket=2**63 - 1)):
                with pytest.raises(InferenceServerException, match=STEPS):
                    call(raw, f"{model}-inference", {**features, "context": hostile})
        assert all(len(each.result()) == 24 for each in bulk)


def test_open_steps_survive_absurd_times(raw, server):
    """Open steps serve whoever measures a step; the reported times are nonsense, the responses are not."""
    features = {"input_ids": ints(101, 102), "lengths": ints(2), "prompt_tokens": ints(0), "cost": ints(2)}
    last = 2**63 - 1
    for absurd in ({"preprocessed_ns": -last}, {"arrived_ns": last, "preprocessed_ns": last}, {"ticket": 10**30}):
        sent = {**features, "context": context(**absurd)}
        assert answer_or_complaint(raw, sent) in ((1, 1, 64), "StatusCode.INVALID_ARGUMENT")
    with SIEClient(server.grpc) as client:
        assert client.encode(TINY, "hello vine")["dense"].shape == (64,)


def test_steps_accept_only_unmodified_output_of_the_previous_step(raw, server, unharmed):
    """A client may look at each step of its own request, but change nothing on the way."""
    model = triton_name(MINILM)
    text = np.array([[b"hello vine"]], object)
    sent = arrays(call(raw, f"{model}-preprocess", {"encode_text": text}))
    rows = arrays(call(raw, f"{model}-inference", sent))
    lengths = sent["lengths"]
    answer = arrays(call(raw, f"{model}-postprocess", {**rows, "lengths": lengths}))
    with SIEClient(server.grpc) as client:
        np.testing.assert_allclose(answer["dense"][0, 0], client.encode(MINILM, "hello vine")["dense"], atol=1e-6)
    longer = np.append(sent["input_ids"], np.int32([[102]]), 1)
    for changed, complaint in (
        ({"context": sent["context"] ^ np.uint8(1)}, STEPS),
        ({"input_ids": longer, "lengths": lengths + 1}, STEPS),
        ({"lengths": lengths + 1}, "lengths: sum to"),
        ({"input_ids": sent["input_ids"] - 10**6}, "input_ids: must be from 0"),
    ):
        with pytest.raises(InferenceServerException, match=complaint):
            call(raw, f"{model}-inference", {**sent, **changed})
    with pytest.raises(InferenceServerException, match=STEPS):
        call(raw, f"{model}-postprocess", {**rows, "lengths": np.append(lengths, lengths, 1)})


def answer_or_complaint(raw, tensors):
    try:
        return call(raw, f"{triton_name(TINY)}-inference", tensors).as_numpy("dense").shape
    except InferenceServerException as exc:
        return exc.status()


@pytest.mark.parametrize("model", [MINILM, COLBERT])
def test_each_output_may_be_asked_for_alone(raw, model):
    text = tensor("text", np.array([b"hello vine"], object))
    every = arrays(raw.infer(triton_name(model), [text]))
    for name in every:
        answer = raw.infer(triton_name(model), [text], outputs=[triton.InferRequestedOutput(name)])
        assert arrays(answer).keys() == {name}
        if name != "timing_ms":
            np.testing.assert_array_equal(answer.as_numpy(name), every[name])


def test_an_empty_batch_delays_only_its_sender(raw, server, unharmed):
    """Triton itself never forms a batch of such a request: only its sender waits, and gets no response."""
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        call(raw, f"{triton_name(COLBERT)}-preprocess", {"encode_text": np.zeros((0, 0), object)}, client_timeout=1)


def test_the_key_of_the_seals_is_private(server):
    (key,) = Path(server.settings.status_dir).glob("*.key")
    assert key.stat().st_mode & 0o077 == 0


def arrays(response):
    return {output.name: response.as_numpy(output.name) for output in response.get_response().outputs}
