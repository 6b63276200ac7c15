"""Limit on requests in progress, by the records and a clock that the test advances."""

from types import SimpleNamespace

import numpy as np
import pytest

from sie_triton.records import request_limit, status
from sie_triton.records.limits import RecordLimits
from sie_triton.records.request_limit import OtherModels, RequestLimit
from sie_triton.records.status import RECORD, VERSION, StatusReader, StatusWriter, status_path
from sie_triton.system.processes.pids import ProcessId
from tests.support.limits import no_file_handle_left

LIMIT = 8


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """The request limit of a model with one process of each stage."""
    made = SimpleNamespace(now=10**12, directory=tmp_path)
    for module in (request_limit, status):
        monkeypatch.setattr(module, "monotonic_ns", lambda: made.now)
    made.preprocess = StatusWriter(tmp_path, "m", "preprocess", 0)
    made.inference = StatusWriter(tmp_path, "m", "inference", 0)
    made.limited_to = lambda of_server, of_model: RequestLimit(
        of_server, of_model, made.preprocess, StatusReader(tmp_path, "m", "inference"), OtherModels(tmp_path, "m")
    )
    made.limit = made.limited_to(LIMIT, 0)
    return made


def another(limited, pid, **fields):
    """Add an inference process that the limit has seen."""
    record = np.memmap(status_path(limited.directory, "m", "inference", pid), RECORD, "w+", shape=(1,))[0]
    started = ProcessId.of(pid).started
    for field, value in {"pid": pid, "started": started, "generation": 1, "version": VERSION, **fields}.items():
        record[field] = value
    limited.now += RecordLimits.listing_ns


def test_a_forged_ticket_makes_no_room(limited):
    """A client that calls inference directly may send any ticket."""
    limited.inference.raise_to(highest_ticket=10**15)
    assert limited.limit.places_left() == LIMIT


def test_an_unused_model_keeps_all_its_room(limited):
    assert limited.limit.places_left() == LIMIT
    limited.now += RecordLimits.stuck_ns + 1
    assert [limited.limit.places_left(), limited.limit.places_left()] == [LIMIT, LIMIT]


def test_the_tickets_of_the_newer_of_two_processes_count(limited, child):
    for _ in range(6):
        limited.preprocess.next_ticket()
    limited.inference.raise_to(highest_ticket=2)
    assert limited.limit.places_left() == LIMIT - 4
    another(limited, child.pid, highest_ticket=5)
    assert limited.limit.places_left() == LIMIT - 1


def test_open_requests_of_two_processes_add_up(limited, child):
    limited.inference.add(num_open=2)
    another(limited, child.pid, num_open=3)
    assert limited.limit.places_left() == LIMIT - 5


def test_open_requests_of_a_dead_process_are_not_counted(limited, child):
    another(limited, child.pid, num_open=3)
    assert limited.limit.places_left() == LIMIT - 3
    child.kill()
    child.wait()
    limited.now += RecordLimits.listing_ns
    assert limited.limit.places_left() == LIMIT


def test_a_record_of_another_version_is_not_read(limited, child):
    another(limited, child.pid, num_open=3, version=0)
    assert limited.limit.places_left() == LIMIT


def test_a_ticket_that_comes_late_does_not_lower_the_highest(limited):
    limited.inference.raise_to(highest_ticket=5)
    limited.inference.raise_to(highest_ticket=3)
    assert limited.inference.record["highest_ticket"] == 5


def test_the_limit_counts_preprocess_the_queue_and_inference(limited):
    assert limited.limit.places_left() == LIMIT
    limited.preprocess.add(num_open=1)
    for _ in range(3):
        limited.preprocess.next_ticket()
    assert limited.limit.places_left() == LIMIT - 4
    limited.inference.raise_to(highest_ticket=3)
    limited.inference.add(num_open=2)
    assert limited.limit.places_left() == LIMIT - 3


def test_requests_that_vanished_are_forgotten_when_a_later_one_arrives(limited):
    for _ in range(5):
        limited.preprocess.next_ticket()
    assert limited.limit.places_left() == LIMIT - 5
    limited.inference.raise_to(highest_ticket=5)
    assert limited.limit.places_left() == LIMIT


def test_a_new_process_goes_on_with_the_tickets(limited):
    for _ in range(5):
        limited.preprocess.next_ticket()
    assert StatusWriter(limited.directory, "m", "inference", 1).record["highest_ticket"] == 5
    limited.preprocess.remove()
    assert StatusWriter(limited.directory, "m", "preprocess", 1).next_ticket() == 6


@pytest.mark.parametrize(
    ("num_open", "interval_ns"), [(LIMIT - 1, RecordLimits.listing_ns), (LIMIT, RecordLimits.fresh_listing_ns)]
)
def test_records_are_listed_again_sooner_where_there_would_be_no_room(limited, num_open, interval_ns):
    limited.inference.add(num_open=num_open)
    assert limited.limit.places_left() == LIMIT - num_open
    limited.inference.remove()
    StatusWriter(limited.directory, "m", "inference", 1)
    limited.now += interval_ns - 1
    assert limited.limit.places_left() == LIMIT - num_open
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
    limited.now += RecordLimits.stuck_ns
    assert limited.limit.places_left() == 0
    limited.now += 1
    assert [limited.limit.places_left(), limited.limit.places_left()] == [1, 0]


def test_the_count_stays_while_no_file_handle_is_left(limited):
    """The requests of this moment are then admitted, or refused, by the latest listing."""
    StatusWriter(limited.directory, "other", "inference", 0).add(num_open=2)
    limited.inference.add(num_open=1)
    assert limited.limit.places_left() == LIMIT - 3
    limited.now += RecordLimits.listing_ns
    with no_file_handle_left():
        room_left = limited.limit.places_left()
    assert room_left == LIMIT - 3


# --- the limit on the whole server


@pytest.fixture
def other(limited):
    """The stages of another model, whose traffic counts for the limit on the server."""
    stages = ("preprocess", "inference")
    made = SimpleNamespace(**{each: StatusWriter(limited.directory, "other", each, 0) for each in stages})
    limited.now += RecordLimits.listing_ns
    return made


def test_requests_of_other_models_count_wherever_they_are(limited, other):
    assert limited.limit.places_left() == LIMIT
    other.preprocess.add(num_open=1)
    other.inference.add(num_open=2)
    for _ in range(3):
        other.preprocess.next_ticket()
    limited.now += RecordLimits.count_age_ns
    assert limited.limit.places_left() == LIMIT - 6
    other.inference.raise_to(highest_ticket=3)
    other.inference.add(num_open=-2)
    limited.now += RecordLimits.count_age_ns
    assert limited.limit.places_left() == LIMIT - 1


def test_own_requests_are_counted_at_once_and_once(limited, other):
    limited.preprocess.add(num_open=2)
    assert limited.limit.places_left() == LIMIT - 2


def test_the_limit_of_a_model_leaves_room_for_others(limited, other):
    limit = limited.limited_to(LIMIT, 3)
    limited.preprocess.add(num_open=3)
    assert limit.places_left() == 0
    assert "3 requests of this model" in str(limit.refusal())
    assert "SIE_MAX_REQUESTS_PER_MODEL" in str(limit.refusal())
    limited.preprocess.add(num_open=-2)
    other.inference.add(num_open=LIMIT - 1)
    limited.now += RecordLimits.count_age_ns
    assert limit.places_left() == 0
    assert f"{LIMIT} requests are in progress on this server" in str(limit.refusal())
    assert limit.refusal().retry_after_s == 1


def test_a_full_server_admits_no_trial_request_of_a_model_that_queues_none(limited, other):
    other.inference.add(num_open=LIMIT)
    limited.now += RecordLimits.stuck_ns + 1
    assert limited.limit.places_left() == 0


def test_open_requests_of_a_dead_process_of_another_model_are_not_counted(limited, child):
    path = status_path(limited.directory, "other", "inference", child.pid)
    record = np.memmap(path, RECORD, "w+", shape=(1,))[0]
    for field, value in {**ProcessId.of(child.pid)._asdict(), "num_open": 3, "version": VERSION}.items():
        record[field] = value
    limited.now += RecordLimits.listing_ns
    assert limited.limit.places_left() == LIMIT - 3
    child.kill()
    child.wait()
    limited.now += RecordLimits.listing_ns
    assert limited.limit.places_left() == LIMIT


def test_requests_that_another_model_has_lost_are_forgotten(limited, other):
    for _ in range(3):
        other.preprocess.next_ticket()
    limited.now += RecordLimits.count_age_ns
    assert limited.limit.places_left() == LIMIT - 3
    limited.now += RecordLimits.forget_queue_ns
    assert limited.limit.places_left() == LIMIT
    other.preprocess.next_ticket()
    other.inference.raise_to(highest_ticket=2)
    limited.now += RecordLimits.count_age_ns
    assert limited.limit.places_left() == LIMIT - 2


def test_unreadable_records_of_other_models_are_left_out(limited):
    (limited.directory / "other-inference.1.status").write_bytes(b"short")
    (limited.directory / "x.status").write_bytes(b"")
    limited.now += RecordLimits.listing_ns
    assert limited.limit.places_left() == LIMIT
