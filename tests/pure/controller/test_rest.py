"""The controller's rest: what makes a round due, and what does not."""

import os
import signal
from dataclasses import replace
from threading import Event, Thread

import pytest

from sie_triton.controller import loop
from sie_triton.records.grants import granted_memory
from sie_triton.records.status import LOADING, RESIDENT, StatusWriter
from sie_triton.system.processes.pids import is_stopped
from tests.support.controller import round_of, stage, wait_for
from tests.support.limits import no_file_handle_left

LONG_S = 60.0


@pytest.fixture
def model(controller, child):
    """Resident model without requests, which the controller has seen."""
    record = stage(controller, "a", child.pid, state=RESIDENT, worker_pid=child.pid).record
    round_of(controller)
    controller._news.wait(0)
    controller._news.has_changed()
    return record


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Clock of the controller; it stands still."""
    now = [1000.0]
    monkeypatch.setattr(loop, "monotonic", lambda: now[0])
    return now


# The start of a controller does not count as a death.
pytestmark = pytest.mark.parametrize("controller", [{"after_death_s": 0.0}], indirect=True)


def is_due(controller, within_s=0.0):
    controller.limits = replace(controller.limits, look_s=within_s)
    return controller.is_due()


def test_a_controller_rests_while_nothing_happens(controller, model, clock):
    assert not is_due(controller)
    clock[0] += controller.limits.rest_s + 1
    assert is_due(controller)


def test_a_request_for_memory_ends_the_rest(controller, model, monkeypatch):
    """It does so before any look at the records."""
    status = StatusWriter(controller._directory, "b", "inference", 0)
    controller._news.wait(0)
    closing = Event()
    monkeypatch.setattr(controller._news, "has_changed", lambda: False)
    load = Thread(target=lambda: granted_memory(status, 1, closing).__enter__(), daemon=True)
    load.start()
    assert is_due(controller, LONG_S)
    controller.tick()
    load.join()


def test_a_new_process_ends_the_rest(controller, model, monkeypatch):
    monkeypatch.setattr(controller._news, "has_changed", lambda: False)
    StatusWriter(controller._directory, "b", "inference", 0)
    assert is_due(controller, LONG_S)


def test_the_end_of_a_process_ends_the_rest_once(controller, model, monkeypatch, child):
    monkeypatch.setattr(controller._news, "has_changed", lambda: False)
    child.kill()
    assert is_due(controller, LONG_S)
    round_of(controller)
    assert not controller._news.wait(0)


def test_rounds_follow_each_other_after_a_death(controller, model, child, pids):
    """Its shared memory is sought, in two rounds."""
    controller._healing._limits = controller.limits = replace(controller.limits, after_death_s=LONG_S)
    child.kill()
    child.wait()
    stage(controller, "a", pids[0], state=RESIDENT, generation=1)
    for _ in range(3):
        round_of(controller)
        controller._news.wait(0)
        controller._news.has_changed()
        assert is_due(controller)


def test_a_closed_controller_does_not_rest(controller, model, monkeypatch):
    monkeypatch.setattr(controller._news, "has_changed", lambda: False)
    controller.close()
    assert is_due(controller, LONG_S)


def test_a_record_that_changes_makes_a_round_due(controller, model):
    model["last_used_ns"] = 1
    assert is_due(controller)
    assert not is_due(controller)


@pytest.mark.parametrize(
    "fields",
    [{"state": LOADING}, {"wanted_bytes": 1 << 60}, {"num_open": 1}, {"state": RESIDENT, "pid": 1 << 30}],
    ids=str,
)
def test_rounds_follow_each_other_until_a_model_is_settled(controller, model, fields):
    for field, value in fields.items():
        model[field] = value
    round_of(controller)
    controller._news.has_changed()
    controller._news.wait(0)
    assert is_due(controller)


def test_a_stopped_process_is_ended_without_a_rest(controller, model, child):
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(child.pid))
    controller.tick()
    assert is_due(controller)
    controller.tick()
    assert child.wait(60) == -signal.SIGKILL


def test_a_process_that_cannot_be_followed_makes_rounds_due(controller, model, monkeypatch, pids):
    stage(controller, "b", pids[0], state=RESIDENT)
    follow = controller._news.follow

    def without_handles(processes):
        with no_file_handle_left():
            follow(processes)

    monkeypatch.setattr(controller._news, "follow", without_handles)
    round_of(controller)
    controller._news.has_changed()
    controller._news.wait(0)
    assert is_due(controller)
