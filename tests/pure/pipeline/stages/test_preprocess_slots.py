"""The preprocess stage takes slots that all models share; the test is two other models."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from sie_triton.errors import BusyError, Cancelled, DeadlinePassed
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.preprocess import SLOTS_FILE, Preprocess
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.status import StatusWriter
from sie_triton.system.host.file_locks import LockFile
from tests.support.controller import wait_for
from tests.support.stages import asked, run, spec
from tests.support.threads import no_thread

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
def held(slots, tmp_path):
    """All slots of the server, until the context ends."""
    with ExitStack() as stack:
        for each in (*[slots] * NUM_SLOTS, Slots(LockFile(tmp_path / SLOTS_FILE), NUM_SLOTS, NUM_SLOTS)):
            stack.enter_context(each.bulk())
        yield stack


def num_open(stage):
    return stage.status.record["num_open"]


def test_a_bulk_request_without_a_slot_waits_beside_execute(stage, held):
    request = asked("encode", text=BULK)
    (answer,) = stage.execute([request])
    assert answer is DEFERRED
    assert num_open(stage) == 1
    held.close()
    assert len(request.answer(answer)["lengths"]) == len(BULK)
    wait_for(lambda: num_open(stage) == 0)


def test_a_small_request_needs_neither_a_slot_nor_a_thread(stage, held):
    before = threading.active_count()
    (answer,) = run(stage, [asked("encode", text=SMALL)])
    assert len(answer["lengths"]) == 1
    assert threading.active_count() == before


@pytest.mark.parametrize("num_started", [0, 1])
def test_a_lack_of_threads_fails_only_requests_that_need_one(stage, monkeypatch, num_started):
    """The clock of deferred requests starts first, then the thread that makes features."""
    starts = iter([threading._start_new_thread] * num_started)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", lambda *args: next(starts, no_thread)(*args))
        small, bulk = run(stage, [asked("encode", text=SMALL), asked("encode", text=BULK)])
    assert len(small["lengths"]) == 1
    assert isinstance(bulk, BusyError)
    assert num_open(stage) == 0
    assert len(run(stage, [asked("encode", text=BULK)])[0]["lengths"]) == len(BULK)


def test_a_deadline_is_answered_while_all_slots_are_taken(stage, held):
    (answer,) = run(stage, [asked("encode", timeout_us=1000, text=BULK)])
    assert isinstance(answer, DeadlinePassed)


def test_a_client_that_leaves_while_it_waits_costs_no_work(stage, held):
    request = asked("encode", text=BULK)
    (answer,) = stage.execute([request])
    request.cancelled = True
    held.close()
    assert isinstance(request.answer(answer), Cancelled)


def test_a_bulk_request_takes_a_slot_for_each_step_and_gives_all_back(stage, slots, held):
    """It is cut into more steps than there are slots, and gets what it would get with free ones."""
    texts = ["word " * 200] * 400
    request = asked("encode", text=texts)
    (answer,) = stage.execute([request])
    wait_for(lambda: slots.has_waiting)
    assert not request.answers
    held.close()
    waited = request.answer(answer)
    wait_for(lambda: slots.num_taken == 0)
    (at_once,) = run(stage, [asked("encode", text=texts)])
    for name in ("input_ids", "lengths"):
        np.testing.assert_array_equal(waited[name], at_once[name])
