"""A stage whose own code fails: each deferred request gets an error, once, and no longer counts as open."""

import pytest

from sie_triton.errors import ModelError
from sie_triton.pipeline.stages.cold_stage import ColdStage
from sie_triton.pipeline.stages.open_requests import NEVER
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.status import StatusWriter
from tests.support.stages import run, tokens


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

    def entry(self, request):
        return NEVER, ""


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
