"""A process whose memory another process waits for has a limited time to finish its requests."""

import pytest

from sie_triton.errors import BusyError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.pipeline.stages import open_requests as module
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.records.status import COLD, LOADING, RESIDENT, StatusWriter, status_path
from sie_triton.system.processes.pids import ProcessId
from tests.support.clocks import Clock
from tests.support.controller import wait_for
from tests.support.stages import Counts, FakeRequest, open_requests


def test_only_time_while_the_memory_is_awaited_counts(monkeypatch):
    clock, counts = Clock(), Counts()
    monkeypatch.setattr(module, "monotonic", clock)
    requests = open_requests(counts, limits=StageLimits(drain_timeout_s=60.0))
    request = OpenRequest(FakeRequest(), requests)
    request.defer(NEVER)
    for awaits, seconds, is_open in (
        (True, 0, True),
        (True, 59, True),
        (False, 2, True),
        (True, 0, True),
        (True, 60, False),
    ):
        counts.awaits = awaits
        clock.now += seconds
        requests._end_overdue()
        assert request.is_open == is_open
    requests.close()


def test_remaining_requests_get_an_error_even_without_a_deadline():
    counts, limits = Counts(), StageLimits(successor_poll_s=0.01, drain_timeout_s=0.0)
    requests, waiting = open_requests(counts, limits=limits), [FakeRequest(), FakeRequest()]
    opened = [OpenRequest(each, requests) for each in waiting]
    for request, deadline in zip(opened, (NEVER, NEVER - 1), strict=True):
        request.defer(deadline)
    counts.awaits = True
    wait_for(lambda: counts.total("num_open") == -2)
    assert all(isinstance(each, BusyError) for request in waiting for each in request.answers)
    assert [len(request.answers) for request in waiting] == [1, 1]
    assert not any(request.is_open for request in opened)
    requests.close()


@pytest.mark.parametrize(
    ("own", "stage", "other", "generation", "state", "expected"),
    [
        ("m", "inference", "m", 1, LOADING, True),  # this process was evicted
        ("m", "inference", "m", 1, COLD, False),
        ("m", "inference", "m", 1, RESIDENT, False),
        ("m", "inference", "m", -1, LOADING, False),
        ("m", "preprocess", "m", 1, LOADING, False),  # another stage of the same model loads
        ("m", "inference", "m@2", 0, LOADING, True),  # the model has a new revision
        ("m", "preprocess", "m@2", 0, LOADING, True),
        ("m@2", "inference", "m", 5, LOADING, False),
        ("m", "inference", "n", 1, LOADING, False),
    ],
)
def test_a_process_knows_whether_its_memory_is_awaited(tmp_path, child, own, stage, other, generation, state, expected):
    writer = StatusWriter(tmp_path, own, stage, 0)
    later = StatusWriter(tmp_path / "apart", other, "inference", generation)
    later.record["pid"], later.record["started"] = ProcessId.of(child.pid)
    later.record["state"] = state
    later._path.rename(status_path(tmp_path, other, "inference", child.pid))
    assert writer.is_awaited() == expected
