"""Status records: last use of a model, the reason of a failed load, and living processes."""

import os
import subprocess
import threading
import time

import numpy as np
import pytest

from sie_triton.controller.loop import lock
from sie_triton.controller.model_states import models_of, read_stages
from sie_triton.errors import REASONS, LoadError
from sie_triton.records import status as module
from sie_triton.records.grants import answer_path, granted_memory
from sie_triton.records.status import RECORD, RESIDENT, VERSION, StatusWriter, all_records, read_failure, records_of
from sie_triton.system.processes.pids import ProcessId, is_alive
from tests.support.limits import full_disk


@pytest.fixture
def clock(monkeypatch) -> list[int]:
    """A monotonic clock in nanoseconds."""
    now = [1000]
    monkeypatch.setattr(module, "monotonic_ns", lambda: now[0])
    return now


@pytest.fixture
def status(tmp_path) -> StatusWriter:
    return StatusWriter(tmp_path, "m", "inference", 0)


def model(status):
    return models_of(read_stages(status.directory))["m"]


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason_of_a_failed_load_is_read_as_it_was_written(status, reason):
    status.load_failed(reason)
    assert (model(status).failure, model(status).state) == (reason, "failed")


def test_the_message_of_a_failed_load_is_kept_on_one_line_on_a_full_disk_too(status):
    with full_disk():
        status.load_failed("corrupt", "model.safetensors:\n is cut off" + "ü" * 2000)
    stage, record = model(status).failed
    message = read_failure(status.directory, model(status).steps, stage, record["pid"])
    assert message.startswith("model.safetensors: is cut offüüü")
    assert len(message.encode()) in (999, 1000)
    assert read_failure(status.directory, "other", "inference", record["pid"]) == ""


def test_a_load_that_succeeds_leaves_no_failure_and_counts_as_use(status, clock):
    """Otherwise the model that was just loaded would be evicted first."""
    status.load_failed("network")
    clock[0] = 2000
    status.loaded()
    assert (model(status).failure, model(status).state) == ("", "resident")
    assert status.record["state"] == RESIDENT
    assert status.record["last_used_ns"] == status.record["resident_since_ns"] == 2000


def test_work_counts_as_use_from_its_start(status, clock):
    clock[0] = 2000
    started = status.work_started()
    assert (status.record["last_used_ns"], status.record["busy_since_ns"]) == (2000, 2000)
    clock[0] = 3000
    second = status.work_started()
    assert (status.record["last_used_ns"], status.record["busy_since_ns"]) == (3000, 2000)
    clock[0] = 4000
    status.work_ended(started)
    assert (status.record["last_used_ns"], status.record["busy_since_ns"]) == (4000, 3000)
    clock[0] = 5000
    status.work_ended(second)
    assert (status.record["last_used_ns"], status.record["busy_since_ns"]) == (5000, 0)


def test_an_unfinished_record_belongs_to_no_model(status):
    """Otherwise the stage would seem to have no process, and the controller would replace it."""
    (status.directory / "new-postprocess.1.status").write_bytes(bytes(RECORD.itemsize))
    assert all_records(status.directory)["postprocess"] == {}


def test_a_record_of_another_version_is_ignored(status):
    (good,) = records_of(status.directory, "m", "inference")
    content = next(status.directory.glob("m-inference.*.status")).read_bytes()
    for pid, changed in enumerate((content[:-8], bytes(8) + content[8:], b""), 1):
        (status.directory / f"m-inference.{pid}.status").write_bytes(changed)
    assert records_of(status.directory, "m", "inference") == [good]
    assert good["pid"] == os.getpid()


# --- several processes


@pytest.fixture
def record(tmp_path):
    """Make a record of a process of model `name`; without a pid, of this process."""

    def make(name, stage="inference", generation=0, pid=None):
        writer = StatusWriter(tmp_path, name, stage, generation)
        if pid is not None:
            writer.record["pid"], writer.record["started"] = ProcessId.of(pid)
        return writer

    return make


def ended(process):
    process.kill()
    process.wait()
    return process.pid


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


# --- memory for a load


def test_an_answer_to_a_process_that_had_the_same_pid_is_not_taken(record, tmp_path):
    closing = threading.Event()
    closing.set()
    answer_path(tmp_path, os.getpid()).write_text("weights: never")
    with lock(tmp_path), pytest.raises(LoadError, match="about to end"), granted_memory(record("m"), 5, closing):
        raise AssertionError
