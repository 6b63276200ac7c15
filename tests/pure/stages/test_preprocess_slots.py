"""The preprocess stage takes slots that all models share; the test is the other model."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from sie_triton.errors import Cancelled, DeadlinePassed
from sie_triton.host.file_locks import LockFile
from sie_triton.records.status import StatusWriter
from sie_triton.scheduling.slots import Slots
from sie_triton.stages.preprocess import SLOTS_FILE, Preprocess
from sie_triton.stages.request import DEFERRED
from tests.support.controller import wait_for
from tests.support.stages import asked, run, spec

NUM_SLOTS = 4
SMALL, BULK = ["hello vine"], ["hello vine"] * 200


@pytest.fixture
def stage(tmp_path, minilm_directory):
    made = Preprocess(spec(weights=str(minilm_directory)), StatusWriter(tmp_path, "m", "preprocess", 0))
    made.warm_up()
    yield made
    made.close()


@pytest.fixture
def slots(tmp_path):
    return Slots(LockFile(tmp_path / SLOTS_FILE), NUM_SLOTS, NUM_SLOTS)


@pytest.fixture
def held(slots):
    """All slots of the server, until the context ends."""
    with ExitStack() as stack:
        for _ in range(NUM_SLOTS):
            stack.enter_context(slots.small())
        yield stack


def num_open(stage):
    return stage.status.record["num_open"]


@pytest.mark.parametrize("texts", [SMALL, BULK], ids=["small", "bulk"])
def test_a_request_without_a_slot_waits_beside_execute(stage, held, texts):
    request = asked("encode", text=texts)
    (answer,) = stage.execute([request])
    assert answer is DEFERRED
    assert num_open(stage) == 1
    held.close()
    assert len(request.answer(answer)["lengths"]) == len(texts)
    wait_for(lambda: num_open(stage) == 0)


def test_waiting_requests_get_what_they_would_get_at_once(stage, slots, held):
    texts = [SMALL, ["a", "b c"], ["d " * 300] * 100, ["e " * 300] * 100, ["f"]]
    requests = [asked("encode", text=each) for each in texts]
    given = stage.execute(requests)
    assert given == [DEFERRED] * len(texts)
    held.close()
    waited = [request.answer(answer)["input_ids"] for request, answer in zip(requests, given, strict=True)]
    wait_for(lambda: slots.num_taken == 0)
    at_once = [run(stage, [asked("encode", text=each)])[0]["input_ids"] for each in texts]
    for one, other in zip(waited, at_once, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("texts", [SMALL, BULK], ids=["small", "bulk"])
def test_a_deadline_is_answered_while_all_slots_are_taken(stage, held, texts):
    (answer,) = run(stage, [asked("encode", timeout_us=1000, text=texts)])
    assert isinstance(answer, DeadlinePassed)


@pytest.mark.parametrize("texts", [SMALL, BULK], ids=["small", "bulk"])
def test_a_client_that_leaves_while_it_waits_costs_no_work(stage, held, texts):
    request = asked("encode", text=texts)
    (answer,) = stage.execute([request])
    request.cancelled = True
    held.close()
    assert isinstance(request.answer(answer), Cancelled)


def test_a_bulk_request_takes_one_slot_fewer_than_there_are_and_gives_all_back(stage, slots):
    """It is cut into more steps than there are slots."""
    request = asked("encode", text=["word " * 200] * 400)
    with slots.bulk(), slots.bulk(), slots.bulk():
        (answer,) = stage.execute([request])
        wait_for(lambda: slots.has_bulk_waiting)
        (small,) = run(stage, [asked("encode", text=SMALL)])
        assert len(small["lengths"]) == 1
        assert not request.answers
    assert len(request.answer(answer)["lengths"]) == 400
    wait_for(lambda: slots.num_taken == 0)


def test_small_requests_need_no_thread(stage):
    before = threading.active_count()
    run(stage, [asked("encode", text=SMALL)])
    assert threading.active_count() == before


def test_requests_of_one_batch_are_tokenized_in_groups_of_a_bounded_size(stage, monkeypatch):
    """One step of small requests is no larger than one large small request."""
    sizes, features_of = [], stage._answers
    monkeypatch.setattr(
        stage, "_answers", lambda processor, group: sizes.append(len(group)) or features_of(processor, group)
    )
    run(stage, [asked("encode", text=["word " * 200] * 100) for _ in range(3)])
    assert sizes == [1, 1, 1]
