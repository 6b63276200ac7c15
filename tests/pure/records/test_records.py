"""Communication by small files: status records, the request limit that reads them, and memory for a load."""

import os
import subprocess
import threading
import time

import numpy as np
import pytest

from sie_triton.controller.loop import lock
from sie_triton.errors import LoadError
from sie_triton.records import other_models, status
from sie_triton.records import request_limit as limit
from sie_triton.records.grants import answer_path, granted_memory
from sie_triton.records.limits import RecordLimits
from sie_triton.records.other_models import OtherModels
from sie_triton.records.request_limit import RequestLimit
from sie_triton.records.status import RECORD, VERSION, StatusReader, StatusWriter
from sie_triton.system.processes.pids import ProcessId, is_alive
from tests.support.limits import no_file_handle_left

LIMIT = 8


@pytest.fixture
def record(tmp_path):
    """Make a record of a process of model `name`; without a pid, of this process."""

    def make(name, stage="inference", generation=0, pid=None):
        writer = StatusWriter(tmp_path, name, stage, generation)
        if pid is not None:
            writer.record["pid"], writer.record["started"] = ProcessId.of(pid)
        return writer

    return make


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def ended(process):
    process.kill()
    process.wait()
    return process.pid


# --- the record


def test_a_new_process_knows_when_its_model_was_last_used(record):
    record("m").record["last_used_ns"] = 5
    record("other").record["last_used_ns"] = 7
    assert record("m", generation=1).record["last_used_ns"] == 5
    assert record("m@1").record["last_used_ns"] == 5


def test_other_models_exclude_own_dead_and_remote_processes(record, child):
    gone = subprocess.Popen(["sleep", "60"])
    mine = record("m")
    record("dead", pid=ended(gone))
    record("alive", pid=child.pid)
    record("alive", stage="preprocess", pid=child.pid)
    # Nor a model that a remote server computes: it leaves this machine's processor to the others.
    record("far", pid=child.pid).computed_by("remote")
    assert [each["pid"] for each in mine.of_other_models()] == [child.pid]


def test_an_ended_process_is_dead_before_it_is_reaped():
    with subprocess.Popen(["true"]) as process:
        deadline = time.monotonic() + 60
        while is_alive(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert is_alive(os.getpid())


def test_a_successor_counts_only_while_it_lives(record, tmp_path, child):
    old = record("m")
    record("m", "preprocess", generation=1)
    assert not old.has_successor()
    new = np.memmap(tmp_path / f"m-inference.{child.pid}.status", RECORD, "w+", shape=(1,))[0]
    new["pid"], new["started"] = ProcessId.of(child.pid)
    new["generation"], new["version"] = 1, VERSION
    assert old.has_successor()
    ended(child)
    assert not old.has_successor()


# --- the limit


@pytest.fixture
def limited(record, tmp_path, monkeypatch):
    """The request limit of a model, with records and a clock that the test advances."""
    monkeypatch.setattr(limit, "monotonic_ns", lambda: made.now)
    monkeypatch.setattr(status, "monotonic_ns", lambda: made.now)

    class Limited:
        now = 10**12
        preprocess = record("m", "preprocess")
        inference = record("m")

    made = Limited()
    reader = StatusReader(tmp_path, "m", "inference")
    made.limit = RequestLimit(LIMIT, 0, made.preprocess, reader, OtherModels(tmp_path, "m"))
    return made


def test_a_full_server_reads_the_records_again(limited, record):
    """The process that was full has a successor: seen at once where there would be no room, else twice a second."""
    limited.inference.add(num_open=LIMIT - 1)
    assert limited.limit.places_left() == 1
    limited.inference.remove()
    record("m", generation=1)
    limited.now += RecordLimits.listing_ns - 1
    assert limited.limit.places_left() == 1
    limited.now += 1
    assert limited.limit.places_left() == LIMIT


def test_a_full_server_lists_records_at_shorter_intervals(limited, record):
    limited.inference.add(num_open=LIMIT)
    assert limited.limit.places_left() == 0
    limited.inference.remove()
    record("m", generation=1)
    limited.now += RecordLimits.fresh_listing_ns - 1
    assert limited.limit.places_left() == 0
    limited.now += 1
    assert limited.limit.places_left() == LIMIT


def test_a_full_server_that_makes_progress_admits_no_trial_request(limited):
    """Every 0.9 s a request is taken and another one arrives: the server is full for long, but never stuck."""
    for _ in range(LIMIT):
        limited.preprocess.next_ticket()
    assert limited.limit.places_left() == 0
    for _ in range(5):
        limited.now += RecordLimits.stuck_ns * 9 // 10
        limited.inference.record["highest_ticket"] += 1
        limited.preprocess.next_ticket()
        assert limited.limit.places_left() == 0
    limited.now += RecordLimits.stuck_ns + 1
    assert [limited.limit.places_left(), limited.limit.places_left()] == [1, 0]


def test_the_count_stays_while_no_file_handle_is_left(limited, record, monkeypatch):
    """The requests of this moment are then admitted, or refused, by the latest listing."""
    monkeypatch.setattr(other_models, "monotonic_ns", lambda: limited.now)
    record("other").add(num_open=2)
    limited.inference.add(num_open=1)
    assert limited.limit.places_left() == LIMIT - 3
    limited.now += RecordLimits.listing_ns
    with no_file_handle_left():
        room_left = limited.limit.places_left()
    assert room_left == LIMIT - 3


# --- memory for a load


def test_an_answer_to_a_process_that_had_the_same_pid_is_not_taken(record, tmp_path):
    closing = threading.Event()
    closing.set()
    answer_path(tmp_path, os.getpid()).write_text("weights: never")
    with lock(tmp_path), pytest.raises(LoadError, match="about to end"), granted_memory(record("m"), 5, closing):
        raise AssertionError
