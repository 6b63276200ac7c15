"""The inference stage at its own interface: requests are arrays, without Triton."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import InputError, LoadError, ModelError, OutOfMemory
from sie_triton.models.families.sentence_transformer import SentenceTransformer
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.status import FAILED, RESIDENT, StatusWriter, records_of
from tests.support.stages import MAX_LENGTH, VOCABULARY, EchoWorker, FakeRequest, run, spec, tokens


@pytest.fixture
def on_one_lane(tmp_path) -> Iterator[Inference]:
    """Warm stage of one lane: requests queued together run together, independent of thread timing."""
    stage = Inference(spec(runtime=Runtime(cpu_threads=1)), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    stage.warm_up()
    yield stage
    stage.close()


def test_every_request_gets_its_own_rows_cold_and_warm(inference):
    for _ in range(3):
        requests = [tokens([i] * (i + 1), [i] * 5) for i in range(1, 12)]
        for i, answer in enumerate(run(inference, requests), 1):
            assert answer["dense"].tolist() == [[i, i + 1], [i, 5]]


def test_one_request_on_an_idle_device_is_answered_at_once(inference):
    inference.warm_up()
    request = tokens([1, 2, 3])
    (answer,) = run(inference, [request])
    assert answer["dense"].tolist() == [[1, 3]]
    assert not request.is_deferred


def test_generating_models_never_block_the_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(SentenceTransformer, "generates", True)
    stage = Inference(spec(), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.load = EchoWorker
    stage.warm_up()
    request = tokens([1, 2, 3])
    assert stage.execute([request]) == [DEFERRED]
    assert request.answer(DEFERRED)["dense"].tolist() == [[1, 3]]
    stage.close()


def test_concurrent_first_requests_load_once(inference):
    loads = []
    inference.load = lambda: loads.append(1) or time.sleep(0.2) or inference.worker
    requests = [tokens([i]) for i in range(8)]
    direct = [inference.execute([request]) for request in requests]
    assert all(answers == [DEFERRED] for answers in direct)
    assert [r.answer(DEFERRED)["dense"][0, 0] for r in requests] == list(range(8))
    assert loads == [1]


def test_a_failed_load_is_remembered(inference):
    loads = []

    def fail():
        loads.append(1)
        raise LoadError("weights: gone")

    inference.load = fail
    for _ in range(3):
        (answer,) = run(inference, [tokens([1])])
        assert isinstance(answer, LoadError)
        assert "gone" in str(answer)
    assert loads == [1]


@pytest.mark.parametrize(("reason", "expected"), [("not found", 1), ("network", 3)])
def test_only_transient_load_failures_are_retried(inference, reason, expected):
    inference.limits = StageLimits(retry_load_s=0.0)
    loads = []

    def fail():
        loads.append(1)
        raise LoadError("weights: gone", reason)

    inference.load = fail
    for _ in range(3):
        run(inference, [tokens([1])])
    assert len(loads) == expected


def test_a_bulk_request_is_split_into_sub_batches(inference):
    inference.warm_up()
    (answer,) = run(inference, [tokens(*[[i % 10] * 10 for i in range(50)])])
    assert answer["dense"][:, 0].tolist() == [i % 10 for i in range(50)]
    assert max(inference.worker.batches) <= 100
    assert len(inference.worker.batches) >= 5


def test_options_that_do_not_change_the_forward_pass_share_one(on_one_lane):
    options = [{"output_dtype": dtype} for dtype in ("float32", "int8", "ubinary")]
    options += [{"dimensions": 1}, {"normalize": False}, {"is_query": True}]
    answers = run(on_one_lane, [tokens([3, 4], parameters=each) for each in options])
    assert on_one_lane.worker.batches == [2 * len(options)]
    assert all(answer["dense"].tolist() == [[3, 2]] for answer in answers)


def test_a_request_of_several_items_is_one_pass_on_a_gpu(tmp_path):
    """The answer is immediate; on a CPU, each of two lanes would compute a part."""
    stage = Inference(spec(), "cuda:0", StatusWriter(tmp_path, "m", "inference", 0))
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    stage.warm_up()
    request = tokens(*[[3] * 5] * 4)
    (direct,) = stage.execute([request])
    stage.close()
    assert request.answer(direct)["dense"].tolist() == [[3, 5]] * 4
    assert (stage.worker.batches, request.is_deferred) == ([20], False)


@pytest.mark.parametrize(("num_tokens", "at_once"), [(25, True), (26, False)])
def test_execute_computes_small_requests_itself_and_defers_larger_ones(on_one_lane, num_tokens, at_once):
    """`execute` computes up to a quarter of the budget of 100 itself and defers larger requests."""
    request = tokens([7] * num_tokens)
    (direct,) = on_one_lane.execute([request])
    assert request.is_deferred != at_once
    assert request.answer(direct)["dense"].tolist() == [[7, num_tokens]]


def test_small_requests_pass_bulk_work(inference):
    inference.warm_up()
    inference.worker.delay_s = 0.02
    bulk = tokens(*[[1] * 50 for _ in range(60)])
    assert inference.execute([bulk]) == [DEFERRED]
    for _ in range(5):
        run(inference, [tokens([2])])
    assert not bulk.answered.is_set()
    assert len(bulk.answer(DEFERRED)["dense"]) == 60


def test_bulk_work_does_not_starve(inference):
    inference.warm_up()
    inference.worker.delay_s = 0.005
    bulk = tokens(*[[1] * 50 for _ in range(20)])
    inference.execute([bulk])
    deadline = time.monotonic() + 100
    while not bulk.answered.is_set():
        assert time.monotonic() < deadline
        inference.execute([tokens([2]), tokens([3])])


def test_a_failed_sub_batch_spoils_only_its_own_requests(inference):
    inference.warm_up()
    requests = [tokens([13] * 60), *[tokens([i] * 45) for i in (1, 2, 3)]]
    bad, *good = run(inference, requests)
    assert isinstance(bad, ModelError)
    assert "secret" not in str(bad)
    assert "Traceback" not in str(bad)
    assert [answer["dense"][0, 0] for answer in good] == [1, 2, 3]


@pytest.mark.parametrize("shortages", [1, 10**6])
def test_out_of_memory_is_answered_in_smaller_pieces(inference, shortages):
    """The device runs out of memory once, or has room for only a quarter of a sub-batch from now on."""
    inference.warm_up()
    inference.worker.memory, inference.worker.shortages = 12, shortages
    answers = run(inference, [tokens([i] * 3) for i in range(14, 46)])
    assert [answer["dense"].tolist() for answer in answers] == [[[i, 3]] for i in range(14, 46)]
    assert inference.worker.shortages < shortages


def test_halving_ends(on_one_lane):
    """Without any memory, 1 + 2 + 4 + 8 + 16 passes run, and every request fails."""
    on_one_lane.worker.memory = 0
    answers = run(on_one_lane, [tokens([i]) for i in range(14, 78)])
    assert all(isinstance(answer, OutOfMemory) for answer in answers)
    assert sorted(on_one_lane.worker.batches) == [4] * 16 + [8] * 8 + [16] * 4 + [32] * 2 + [64]


def test_an_item_that_never_fits_is_refused_alone(inference):
    inference.warm_up()
    inference.worker.memory = 30
    big, *small = run(inference, [tokens([1] * 31), *[tokens([i] * 3) for i in range(2, 6)]])
    assert isinstance(big, OutOfMemory)
    assert big.code == "UNAVAILABLE"
    assert "no memory for an item that costs 31" in str(big)
    assert [answer["dense"][0, 0] for answer in small] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            True,
        ),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("shape mismatch"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error, expected):
    assert TorchEngine(spec(), "cpu", Measurements()).is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (lambda: tokens([1] * (MAX_LENGTH + 1)), "lengths: must be at most 64"),
        (lambda: tokens([1, VOCABULARY]), "input_ids: must be at most 99"),
        (FakeRequest, "message: missing"),
        (
            lambda: FakeRequest(message=np.zeros((1, 9), np.uint8)),
            "message: this step accepts only the output of the previous",
        ),
    ],
)
def test_inference_refuses_what_the_loaded_model_cannot_read(inference, bad, complaint):
    inference.warm_up()
    bad, good = run(inference, [bad(), tokens([5])])
    assert isinstance(bad, InputError)
    with pytest.raises(InputError, match=complaint):
        raise bad
    assert good["dense"].tolist() == [[5, 1]]


def test_the_status_record_tells_what_happened(inference):
    inference.load = Inference.load.__get__(inference)
    run(inference, [tokens([1])])
    (record,) = records_of(inference.directory, "m", "inference")
    assert record["state"] == FAILED
    inference.load = lambda: inference.worker
    inference._failure = None
    inference.warm_up()
    run(inference, [tokens([1, 2], [3])])
    (record,) = records_of(inference.directory, "m", "inference")
    assert (record["num_requests"], record["num_items"], record["total_cost"]) == (2, 2, 3)
    assert record["busy_since_ns"] == 0
    assert 0 < record["last_used_ns"] <= time.monotonic_ns()
    assert record["state"] == RESIDENT
