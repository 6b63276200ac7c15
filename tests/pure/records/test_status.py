"""Status records: last use of a model, the reason of a failed load, and living processes."""

import os

import pytest

from sie_triton.controller.model_states import models_of, read_stages
from sie_triton.errors import REASONS
from sie_triton.records import status as module
from sie_triton.records.failures import read_failure
from sie_triton.records.status import RECORD, RESIDENT, StatusWriter, all_records, records_of


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


def test_the_message_of_a_failed_load_is_kept_on_one_line(status):
    status.load_failed("corrupt", "model.safetensors:\n is cut off" + "!" * 2000)
    message = read_failure(status.directory, model(status).steps, model(status).failed_stage)
    assert message.startswith("model.safetensors: is cut off!!!")
    assert len(message) == 1000
    assert read_failure(status.directory, "other", "inference") == ""


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
