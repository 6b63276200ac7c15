"""The controller's work to load a requested model, on a clock that only its waits move."""

import pytest

from sie_triton.controller import loop
from sie_triton.errors import REASONS, LoadError
from sie_triton.records.status import FAILED, LOADING, RESIDENT
from tests.support.controller import stage


@pytest.fixture
def rounds(monkeypatch):
    """List of functions that the controller's waits call, one each."""
    now, waits = [0.0], []

    def wait(seconds):
        now[0] += seconds
        if waits:
            waits.pop(0)()

    monkeypatch.setattr(loop, "monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "sleep", wait)
    return waits


def becomes(process, **fields):
    def change():
        for field, value in fields.items():
            process.record[field] = value

    return change


def test_loading_a_resident_model_does_nothing(controller, control, rounds):
    stage(controller, "a", state=RESIDENT)
    controller.load("a").result(120)
    assert control.swapped == []


def test_loading_a_cold_model_waits_for_a_process_that_loads_it(controller, control, rounds):
    process = stage(controller, "a")
    rounds += [becomes(process, state=LOADING), becomes(process, state=RESIDENT)]
    controller.load("a").result(120)
    assert control.swapped == [("a-inference", True)]
    assert rounds == []


def test_loading_a_model_that_already_loads_only_waits(controller, control, rounds):
    process = stage(controller, "a", state=LOADING)
    rounds += [becomes(process), becomes(process, state=RESIDENT)]
    controller.load("a").result(120)
    assert control.swapped == []
    assert rounds == []


def test_a_tokenizer_that_failed_is_loaded_anew_too(controller, control, rounds, child):
    tokenizer = stage(controller, "a", child.pid, "preprocess", load_failure=1)
    process = stage(controller, "a")
    control.then = becomes(tokenizer, load_failure=0)
    rounds += [becomes(process, state=RESIDENT)]
    controller.load("a").result(120)
    assert control.swapped == [("a-preprocess", False), ("a-inference", True)]


def test_loading_an_unloaded_model_puts_it_into_service(controller, control, rounds):
    controller._directory.mkdir(parents=True, exist_ok=True)
    controller.load("a").result(120)
    assert control.loaded == ["a"]
    assert control.swapped == [("a-inference", True)]


def test_a_failed_load_is_reported_with_its_reason(controller, rounds):
    process = stage(controller, "a")
    rounds += [becomes(process, state=LOADING), becomes(process, state=FAILED, load_failure=2)]
    with pytest.raises(LoadError, match="could not be loaded") as caught:
        controller.load("a").result(120)
    assert caught.value.reason == list(REASONS)[1]


def test_waiting_for_a_load_ends_if_the_model_is_evicted(controller, rounds):
    """The model was evicted meanwhile."""
    process = stage(controller, "a", generation=5)
    rounds += [becomes(process, state=LOADING), becomes(process, state=0, generation=6), lambda: pytest.fail("waits")]
    controller.load("a").result(120)


def test_a_load_is_not_waited_for_for_ever(controller, rounds):
    stage(controller, "a", state=LOADING)
    with pytest.raises(LoadError, match="not in memory after 720 s"):
        controller.load("a").result(120)


def test_a_download_does_not_count_towards_the_load_timeout(controller, rounds):
    process = stage(controller, "a", state=LOADING, fetching_ns=1)
    hours = round(3600 / controller.limits.round_s)
    rounds += [becomes(process)] * hours + [becomes(process, fetching_ns=0)] * 100 + [becomes(process, state=RESIDENT)]
    controller.load("a").result(120)
    assert rounds == []
