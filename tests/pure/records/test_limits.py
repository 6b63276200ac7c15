"""Limit, deadlines and cancellation under load, at the stages' own interface."""

import threading
import time

import numpy as np
import pytest

from sie_triton.contract.spec import Runtime
from sie_triton.errors import BusyError, Cancelled
from sie_triton.models.inputs.request_parts import features_of
from sie_triton.pipeline.stages import preprocess
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.calls import CALL, CallBook
from sie_triton.records.status import FIELDS, StatusWriter
from tests.support.controller import wait_for
from tests.support.stages import EchoWorker, asked, run, spec, tokens

LIMIT = 8


@pytest.fixture
def inference(tmp_path):
    stage = Inference(
        spec(runtime=Runtime(max_concurrent_requests=LIMIT)),
        "cpu",
        StatusWriter(tmp_path, "m", "inference", 0),
    )
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    yield stage
    stage.close()


def counts(stage):
    return {name: int(stage.status.record[name]) for name in FIELDS}


# --- deadlines


def test_a_request_whose_deadline_passed_is_not_computed(inference):
    inference.warm_up()
    late = tokens([1, 2], timeout_us=1000)
    time.sleep(0.002)
    answer, good = run(inference, [late, tokens([5])])
    assert isinstance(answer, BusyError)
    assert "timeout" in str(answer)
    assert good["dense"].tolist() == [[5, 1]]
    assert counts(inference)["num_expired"] == 1
    assert counts(inference)["num_items"] == 1
    assert counts(inference)["num_open"] == 0


def test_a_waiting_request_is_answered_at_its_deadline_and_not_computed(inference):
    inference.warm_up()
    inference.worker.may_go.clear()
    busy = [tokens([1] * 50), tokens([2] * 50), tokens([3] * 50)]
    inference.execute(busy)
    started = time.monotonic()
    late = tokens([9] * 50, timeout_us=100_000)
    (direct,) = inference.execute([late])
    assert isinstance(late.answer(direct), BusyError)
    assert time.monotonic() - started >= 0.1
    inference.worker.may_go.set()
    for request in busy:
        assert request.answer(DEFERRED)["dense"].shape == (1, 2)
    inference.close()
    assert counts(inference)["num_items"] == 3
    assert counts(inference)["num_expired"] == 1


def test_a_bulk_request_stops_at_its_deadline(inference):
    inference.warm_up()
    inference.worker.delay_s = 0.05
    bulk = tokens(*[[1] * 50 for _ in range(200)], timeout_us=200_000)
    (direct,) = inference.execute([bulk])
    assert isinstance(bulk.answer(direct), BusyError)
    inference.close()
    assert counts(inference)["num_items"] < 40


def test_bulk_tokenizing_stops_at_the_deadline(tmp_path, minilm_directory, monkeypatch):
    num_steps = 0

    def counted(*given):
        nonlocal num_steps
        num_steps += 1
        return features_of(*given)

    monkeypatch.setattr(preprocess, "features_of", counted)
    status = StatusWriter(tmp_path, "m", "preprocess", 0)
    stage = Preprocess(spec(weights=str(minilm_directory), max_sequence_length=256), status)
    stage.warm_up()
    text = np.array([[b"word " * 200] * 20_000], object)
    request = asked("encode", timeout_us=100_000, text=text)
    assert isinstance(run(stage, [request])[0], BusyError)
    stage.close()
    assert num_steps < 300  # of 610 steps in total
    assert counts(stage)["num_expired"] == 1
    assert counts(stage)["highest_ticket"] == 0


# --- cancellation


def test_a_cancelled_bulk_request_is_given_up_between_sub_batches(inference):
    inference.warm_up()
    inference.worker.may_go.clear()
    bulk = tokens(*[[1] * 50 for _ in range(200)])
    inference.execute([bulk])
    wait_for(lambda: inference.worker.batches)
    bulk.cancelled = True
    inference.worker.may_go.set()
    assert isinstance(bulk.answer(DEFERRED), Cancelled)
    inference.close()
    assert counts(inference)["num_items"] < 60
    assert counts(inference)["num_cancelled"] == 1
    assert counts(inference)["num_open"] == 0


@pytest.mark.parametrize("num_items", [1, 4])
def test_a_request_whose_client_has_gone_waits_for_no_lane(inference, num_items):
    book = CallBook(inference.status.directory)
    inference.warm_up()
    inference.worker.may_go.clear()
    busy = [tokens([1] * 50), tokens([2] * 50), tokens([3] * 50)]
    inference.execute(busy)
    with book.call() as parameters:
        gone = tokens(*[[9] * 40] * num_items, fields={"call": parameters[CALL]})
        inference.execute([gone])
    assert isinstance(gone.answer(DEFERRED), Cancelled)
    inference.worker.may_go.set()
    for request in busy:
        request.answer(DEFERRED)
    inference.close()
    assert counts(inference)["num_items"] == 3
    assert counts(inference)["num_cancelled"] == 1


# --- the limit


def test_inference_itself_refuses_more_than_the_limit(inference):
    go = threading.Event()
    inference.load = lambda: go.wait(60) and inference.worker
    requests = [tokens([i]) for i in range(LIMIT + 3)]
    direct = inference.execute(requests)
    assert direct[:LIMIT] == [DEFERRED] * LIMIT
    assert all(isinstance(answer, BusyError) and "retry" in str(answer) for answer in direct[LIMIT:])
    assert counts(inference)["num_refused"] == 3
    go.set()
    for i, request in enumerate(requests[:LIMIT]):
        assert request.answer(DEFERRED)["dense"][0, 0] == i
    assert counts(inference)["num_open"] == 0


@pytest.mark.parametrize("setting", ["max_concurrent_requests", "max_requests_per_model"])
def test_preprocess_refuses_at_once_and_says_when_to_retry(tmp_path, minilm_directory, setting):
    status = StatusWriter(tmp_path, "m", "preprocess", 0)
    runtime = Runtime(**{setting: LIMIT})
    stage = Preprocess(spec(weights=str(minilm_directory), runtime=runtime), status)
    stage.warm_up()
    answers = run(stage, [asked("encode", text=["hi"]) for _ in range(LIMIT + 2)])
    assert [answer["context"].ticket for answer in answers[:LIMIT]] == list(range(1, LIMIT + 1))
    assert all(isinstance(answer, BusyError) and f"SIE_{setting.upper()}" in str(answer) for answer in answers[LIMIT:])
    assert counts(stage)["num_refused"] == 2
    stage.close()
