"""A stage's wait for memory until its weights are loaded, with a clock that only waiting advances."""

import os
from time import monotonic_ns

import pytest

from sie_triton.controller.loop import lock
from sie_triton.errors import LoadError
from sie_triton.records import grants
from sie_triton.records.grants import (
    answer_load,
    answer_path,
    expect_controller,
    grant_of,
    granted_memory,
)
from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import StatusWriter

PATIENCE_S, START_S = RecordLimits.grant_patience_s, RecordLimits.controller_start_s


class Waiting:
    """Replacement for a stage's closing event; calls `then(seconds)` while it waits."""

    def __init__(self, then=lambda waited_s: None) -> None:
        self.waited_s = 0.0
        self.then = then

    def wait(self, seconds):
        self.waited_s += seconds
        assert self.waited_s < 10 * PATIENCE_S
        self.then(self.waited_s)
        return False


@pytest.fixture
def status(tmp_path) -> StatusWriter:
    return StatusWriter(tmp_path, "m", "inference", 0)


@pytest.fixture
def waiting(monkeypatch) -> Waiting:
    made = Waiting()
    monkeypatch.setattr(grants, "monotonic", lambda: made.waited_s)
    return made


@pytest.mark.parametrize("verdict", ["gran", "no such reason\nwhy", "network\nwhy"])
def test_an_answer_of_any_text_is_a_refusal(tmp_path, verdict):
    (tmp_path / "answer").write_text(verdict)
    with pytest.raises(LoadError) as told:
        grants.answer_in(tmp_path / "answer")
    assert told.value.reason == ("network" if verdict.startswith("network") else "failed")


@pytest.mark.parametrize("content", [b"\xff", b""])
def test_a_damaged_answer_is_none(tmp_path, content):
    (tmp_path / "answer").write_bytes(content)
    assert grants.answer_in(tmp_path / "answer") is None


def test_without_a_controller_memory_is_granted_at_once(status):
    def fail(_):
        raise AssertionError("there is nobody to wait for")

    with granted_memory(status, 5, Waiting(fail)):
        assert status.record["granted_bytes"] == 5


def test_a_controller_that_does_not_answer_is_not_waited_for_for_ever(status, waiting, caplog):
    with lock(status.directory), granted_memory(status, 5, waiting):
        assert status.record["granted_bytes"] == 5
    assert PATIENCE_S <= waiting.waited_s < PATIENCE_S + 1
    assert "the controller has not answered for 120 s: loading without its permission" in caplog.messages


def test_a_controller_that_ends_meanwhile_has_time_to_restart(status, waiting):
    held = lock(status.directory)
    waiting.then = lambda waited_s: held.close() if waited_s > 1 else None
    with granted_memory(status, 5, waiting):
        pass
    assert START_S < waiting.waited_s < START_S + 2


def test_a_controller_that_was_announced_is_waited_for(status, waiting):
    held = []

    def start(waited_s):
        if waited_s > START_S - 1 and not held:
            held.append(lock(status.directory))
        if waited_s > START_S + 5:
            answer_load(status.directory, status.record, grant_of("cpu"))

    expect_controller(status.directory)
    waiting.then = start
    with granted_memory(status, 5, waiting):
        held[0].close()
    assert START_S + 5 < waiting.waited_s < START_S + 6


@pytest.mark.parametrize(
    ("granted", "device"), [("cuda:1", "cuda:1"), ("cuda:0", "cuda:0"), ("cuda:7", "cuda:0"), ("", "cuda:0")]
)
def test_a_grant_names_one_of_the_devices_of_the_stage(status, granted, device):
    """Else the stage takes the first of its own."""

    def answer(_):
        answer_load(status.directory, status.record, grant_of(granted))

    devices = ["cuda:0", "cuda:1"]
    with lock(status.directory), granted_memory(status, 5, Waiting(answer), devices) as found:
        assert (found.device, status.record["device"]) == (device, devices.index(device))


def test_without_a_controller_the_first_device_is_taken(status):
    status.record["device"] = 1
    with granted_memory(status, 5, Waiting(), ["cuda:0", "cuda:1"]) as found:
        assert (found.device, status.record["device"]) == ("cuda:0", 0)


def test_a_grant_ends_the_wait_and_is_removed_after_the_load(status):
    waiting = Waiting(
        lambda waited_s: answer_load(status.directory, status.record, grant_of("cpu")) if waited_s > 1 else None
    )
    path, before = answer_path(status.directory, os.getpid()), monotonic_ns()
    with lock(status.directory):
        with granted_memory(status, 5, waiting):
            assert path.exists()
            assert (status.record["wanted_bytes"], status.record["granted_bytes"]) == (0, 5)
        assert not path.exists()
    assert (status.record["wanted_bytes"], status.record["granted_bytes"]) == (0, 0)
    assert before <= status.record["wanted_since_ns"] <= monotonic_ns()
    assert 1 < waiting.waited_s < 2
