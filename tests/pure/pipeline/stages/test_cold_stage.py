"""Tasks common to all stages: accepting, counting and refusing requests, and loading once."""

import errno
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from sie_triton.errors import REASONS, BusyError, LoadError, ModelError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.job import NEVER, deadline_ns
from sie_triton.pipeline.stages.cold_stage import ColdStage
from sie_triton.pipeline.stages.request import DEFERRED, Origin
from sie_triton.records.status import COLD, StatusWriter, status_path
from sie_triton.system.processes.pids import ProcessId
from sie_triton.system.telemetry.options import Telemetry
from sie_triton.system.telemetry.request_log import RequestLog
from tests.support.controller import wait_for
from tests.support.stages import FakeRequest, run, tokens
from tests.support.threads import no_thread

LIMIT = 4


class Echo(ColdStage[str]):
    """Answers at once; loading waits for `may_load`."""

    name = "preprocess"

    def __init__(self, status: StatusWriter) -> None:
        super().__init__(status, LIMIT, StageLimits(load_log_s=0.1))
        self.may_load = threading.Event()
        self.may_load.set()
        self.num_loads = 0
        self.asked: list[list[FakeRequest]] = []

    def load(self):
        assert self.may_load.wait(20)
        self.num_loads += 1
        return "loaded"

    def process(self, loaded, requests):
        self.asked.append([each.request for each in requests])
        for each in requests:
            each.answer({"x": 1})

    def origin(self, request):
        return Origin(request.arrived_ns)


@pytest.fixture
def echo(tmp_path) -> Iterator[Echo]:
    stage = Echo(StatusWriter(tmp_path, "m", "preprocess", 0))
    yield stage
    stage.close()


@pytest.mark.parametrize("num_over", [0, 2])
def test_a_stage_at_or_over_its_limit_refuses_all_requests(echo, num_over):
    echo.warm_up()
    echo.status.add(num_open=LIMIT + num_over)
    answers = run(echo, [FakeRequest() for _ in range(3)])
    assert all(isinstance(answer, BusyError) for answer in answers)
    assert not any(echo.asked)
    record = echo.status.record
    assert (record["num_requests"], record["num_refused"], record["num_open"]) == (0, 3, LIMIT + num_over)


def test_requests_are_refused_while_places_cannot_be_counted(echo, monkeypatch):
    """An exception must not leave `execute`."""
    echo.warm_up()
    with monkeypatch.context() as patch:
        patch.setattr(echo, "places_left", lambda: pytest.fail("it cannot be counted"))
        answers = run(echo, [FakeRequest(), FakeRequest()])
    assert all(isinstance(answer, BusyError) for answer in answers)
    assert run(echo, [FakeRequest()]) == [{"x": 1}]
    record = echo.status.record
    assert [record[field] for field in ("num_requests", "num_refused", "num_open", "num_faults")] == [1, 2, 0, 1]


def test_the_line_of_a_failed_request_has_the_time_since_it_came(echo, caplog, monkeypatch):
    echo._log = RequestLog("m", Telemetry(log_slow_ms=5000))
    monkeypatch.setattr(echo, "load", lambda: pytest.fail("it is broken"))
    caplog.set_level(logging.INFO)
    slow, quick = FakeRequest(), FakeRequest()
    slow.arrived_ns -= 6_000_000_000  # it has waited for the load
    assert all(isinstance(answer, LoadError) for answer in run(echo, [slow, quick]))
    (line,) = [record for record in caplog.records if record.name == RequestLog.__module__]
    assert 6000 <= line.latency_ms < 66_000
    assert line.error.startswith("load.failed: ")


def test_an_error_that_cannot_be_reported_is_still_the_answer(echo, monkeypatch):
    """At once, and by the clock."""
    echo._log = RequestLog("m", Telemetry(log_requests=True))
    monkeypatch.setattr(echo, "_report", lambda *_: 1 / 0)
    monkeypatch.setattr(echo, "origin", lambda request: Origin(request.arrived_ns, request.arrived_ns))
    echo.may_load.clear()
    answers = run(echo, [FakeRequest() for _ in range(LIMIT + 2)])
    echo.may_load.set()
    assert all(isinstance(answer, BusyError) for answer in answers)
    record = echo.status.record
    wait_for(lambda: record["num_open"] == 0)
    assert (record["num_expired"], record["num_refused"], record["num_faults"]) == (LIMIT, 2, LIMIT + 2)


def test_a_loaded_stage_is_not_loaded_again(echo):
    echo.warm_up()
    echo.load_soon()
    echo.close()
    assert echo.num_loads == 1


def test_only_unanswered_requests_are_computed_after_the_load(echo):
    echo.may_load.clear()
    first, second = FakeRequest(), FakeRequest()
    assert echo.execute([first, second]) == [DEFERRED] * 2
    assert echo._waiting[0].answer(BusyError("its time is over"))
    echo.may_load.set()
    assert second.answer(DEFERRED) == {"x": 1}
    echo.close()
    assert echo.asked == [[second]]
    assert echo.status.record["num_open"] == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EMFILE, ""), (errno.ENFILE, ""), (errno.EIO, "failed"), (errno.ENOSPC, "disk full")],
)
def test_a_failed_load_is_remembered_with_its_reason_and_a_lack_of_file_handles_is_not(echo, monkeypatch, code, reason):
    is_remembered = bool(reason)
    load, problems = echo.load, [OSError(code, os.strerror(code))]

    def load_later() -> str:
        if problems:
            raise problems.pop()
        return load()

    monkeypatch.setattr(echo, "load", load_later)
    (told,) = run(echo, [FakeRequest()])
    assert isinstance(told, LoadError if is_remembered else BusyError)
    assert echo.status.record["load_failure"] == ([*REASONS].index(reason) + 1 if is_remembered else 0)
    (later,) = run(echo, [FakeRequest()])
    assert (later is told) if is_remembered else (later == {"x": 1})


@pytest.mark.parametrize("num_started", [0, 1])
def test_a_lack_of_threads_is_not_remembered(echo, monkeypatch, num_started):
    """The clock of deferred requests starts first, then the thread that loads."""
    starts = iter([threading._start_new_thread] * num_started)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", lambda *args: next(starts, no_thread)(*args))
        (answer,) = run(echo, [FakeRequest()])
    assert isinstance(answer, BusyError)
    assert run(echo, [FakeRequest()]) == [{"x": 1}]
    assert echo.status.record["num_open"] == 0


def test_a_request_counts_as_use_when_it_comes(echo):
    """A model is not idle while its only request waits for the load."""
    echo.may_load.clear()
    request = FakeRequest()
    echo.execute([request])
    assert echo.status.record["last_used_ns"] > 0
    echo.may_load.set()
    request.answer(DEFERRED)


class Fetching(Echo):
    """A stage that fetches its files until `may_load` is set."""

    def load(self):
        with self.fetching() as report_progress:
            report_progress("fetching, 1 of many")
            while not self.may_load.wait(0.01):
                report_progress("fetching, 2 of many")
        return super().load()

    def origin(self, request):
        return Origin(request.arrived_ns, deadline_ns(request.arrived_ns, request.timeout_us))


@pytest.fixture
def fetching(tmp_path) -> Iterator[Fetching]:
    stage = Fetching(StatusWriter(tmp_path, "m", "inference", 0))
    stage.may_load.clear()
    yield stage
    stage.may_load.set()
    stage.close()


def test_errors_of_requests_that_waited_for_a_download_name_its_progress(fetching, caplog, monkeypatch):
    caplog.set_level("INFO", "sie_triton")
    hasty, patient = FakeRequest(timeout_us=300_000), FakeRequest()
    fetching.execute([hasty, patient])
    told = hasty.answer(DEFERRED)
    assert isinstance(told, BusyError)
    assert str(told).startswith("timeout: passed while the model is being loaded: fetching, ")
    assert fetching.status.record["fetching_ns"] > 0
    fetching.may_load.set()
    assert patient.answer(DEFERRED) == {"x": 1}
    assert fetching.status.record["fetching_ns"] == 0
    assert 1 < caplog.text.count("m: fetching, ") < 10, "now and then, not each time"


def test_a_download_is_not_waited_for_at_the_end(fetching):
    request = FakeRequest()
    fetching.execute([request])
    wait_for(lambda: fetching.status.record["fetching_ns"])
    fetching.close()
    assert isinstance(request.answer(DEFERRED), LoadError)


def test_a_download_of_an_evicted_model_stops(fetching, tmp_path, pids):
    request = FakeRequest()
    fetching.execute([request])
    wait_for(lambda: fetching.status.record["fetching_ns"])
    successor = fetching.status.record.copy()
    successor["generation"], (successor["pid"], successor["started"]) = 1, ProcessId.of(pids[0])
    status_path(tmp_path, "m", "inference", pids[0]).write_bytes(successor.tobytes())
    assert "evicted while its weights were fetched; retry" in str(request.answer(DEFERRED))
    assert fetching.status.record["state"] == COLD


class Failing(ColdStage[str]):
    """A stage that answers the first request, defers the others, and fails."""

    name = "inference"

    def load(self):
        return "loaded"

    def process(self, loaded, requests):
        for request in requests:
            request.defer(NEVER)
        requests[0].answer({"x": 1})
        raise RuntimeError("secret detail")

    def origin(self, request):
        return Origin(request.arrived_ns)


@pytest.fixture
def failing(tmp_path):
    stage = Failing(StatusWriter(tmp_path, "m", "inference", 0), 8)
    yield stage
    stage.close()


def assert_told_once(stage, answers):
    stage.close()  # requests answered in the background are counted afterwards
    first, *others = answers
    assert first == {"x": 1}
    for answer in others:
        assert isinstance(answer, ModelError)
        assert str(answer) == "inference failed with RuntimeError; tritonserver.log has the details"
    record = stage.status.record
    assert (record["num_requests"], record["num_open"], record["num_faults"]) == (len(answers), 0, 1)


def test_deferred_requests_get_the_failure_of_their_batch(failing):
    failing.warm_up()
    assert_told_once(failing, run(failing, [tokens([i]) for i in range(3)]))


def test_requests_that_waited_for_the_load_get_the_failure_of_their_batch(failing):
    assert_told_once(failing, run(failing, [tokens([i]) for i in range(3)]))


def test_requests_that_waited_for_a_failed_load_get_its_error(failing, monkeypatch):
    """The weights are there, and the next step fails."""

    def fail():
        raise RuntimeError("secret detail")

    monkeypatch.setattr(failing.status, "loaded", fail)
    requests = [tokens([i]) for i in range(3)]
    assert failing.execute(requests) == [DEFERRED] * 3
    for request in requests:
        assert isinstance(request.answer(DEFERRED), ModelError)
    failing.close()
    assert failing.status.record["num_open"] == 0


def test_a_request_that_the_stage_forgets_gets_an_error(failing, monkeypatch):
    """Triton would wait for its answer for ever."""
    monkeypatch.setattr(failing, "process", lambda loaded, requests: requests[0].answer({"x": 1}))
    failing.warm_up()
    first, forgotten = run(failing, [tokens([i]) for i in range(2)])
    assert first == {"x": 1}
    assert isinstance(forgotten, ModelError)
    assert (failing.status.record["num_faults"], failing.status.record["num_open"]) == (1, 0)
