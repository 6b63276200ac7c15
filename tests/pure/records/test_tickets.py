"""Limit on requests in progress, by the records and a clock that the test advances."""

from types import SimpleNamespace

import numpy as np
import pytest

from sie_triton.processes.pids import ProcessId
from sie_triton.records import status, tickets
from sie_triton.records.status import RECORD, VERSION, StatusReader, StatusWriter, status_path
from sie_triton.records.tickets import LISTING_NS, STUCK_NS, RequestLimit

LIMIT = 8


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """The request limit of a model with one process of each stage."""
    made = SimpleNamespace(now=10**12, directory=tmp_path)
    for module in (tickets, status):
        monkeypatch.setattr(module, "monotonic_ns", lambda: made.now)
    made.preprocess = StatusWriter(tmp_path, "m", "preprocess", 0)
    made.inference = StatusWriter(tmp_path, "m", "inference", 0)
    made.limit = RequestLimit(LIMIT, made.preprocess, StatusReader(tmp_path, "m", "inference"))
    return made


def another(limited, pid, **fields):
    """Add an inference process that the limit has seen."""
    record = np.memmap(status_path(limited.directory, "m", "inference", pid), RECORD, "w+", shape=(1,))[0]
    started = ProcessId.of(pid).started
    for field, value in {"pid": pid, "started": started, "generation": 1, "version": VERSION, **fields}.items():
        record[field] = value
    limited.now += LISTING_NS


def test_a_forged_ticket_makes_no_room(limited):
    """A client that calls inference directly may send any ticket."""
    limited.inference.raise_to(highest_ticket=10**15)
    assert limited.limit.room() == LIMIT


def test_an_unused_model_keeps_all_its_room(limited):
    assert limited.limit.room() == LIMIT
    limited.now += STUCK_NS + 1
    assert [limited.limit.room(), limited.limit.room()] == [LIMIT, LIMIT]


def test_a_stuck_server_admits_one_trial_request_at_a_time(limited):
    for _ in range(LIMIT):
        limited.preprocess.next_ticket()
    for _ in range(3):
        limited.now += STUCK_NS + 1
        assert [limited.limit.room(), limited.limit.room()] == [1, 0]


def test_the_tickets_of_the_newer_of_two_processes_count(limited, child):
    for _ in range(6):
        limited.preprocess.next_ticket()
    limited.inference.raise_to(highest_ticket=2)
    assert limited.limit.room() == LIMIT - 4
    another(limited, child.pid, highest_ticket=5)
    assert limited.limit.room() == LIMIT - 1


def test_open_requests_of_two_processes_add_up(limited, child):
    limited.inference.add(num_open=2)
    another(limited, child.pid, num_open=3)
    assert limited.limit.room() == LIMIT - 5


def test_open_requests_of_a_dead_process_are_not_counted(limited, child):
    another(limited, child.pid, num_open=3)
    assert limited.limit.room() == LIMIT - 3
    child.kill()
    child.wait()
    limited.now += LISTING_NS
    assert limited.limit.room() == LIMIT


def test_a_record_of_another_version_is_not_read(limited, child):
    another(limited, child.pid, num_open=3, version=0)
    assert limited.limit.room() == LIMIT


def test_a_ticket_that_comes_late_does_not_lower_the_highest(limited):
    limited.inference.raise_to(highest_ticket=5)
    limited.inference.raise_to(highest_ticket=3)
    assert limited.inference.record["highest_ticket"] == 5
